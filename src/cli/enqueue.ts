import { randomUUID } from 'node:crypto';
import type { Command } from 'commander';
import { OnetakeError } from '../core/errors.ts';
import { OPERATION_NAMES } from '../core/operations.ts';
import type { Client, RequestDetails } from '../runtime/client.ts';
import type { EnqueueInput } from '../runtime/enqueue-options.ts';
import type { Context, Runner } from './context.ts';
import { enqueueFile } from './enqueue-file.ts';
import { CommandError, EXIT, usageError } from './errors.ts';
import { parseFields } from './field-text.ts';
import type { Terminal } from './output.ts';
import { showRequest } from './request-view.ts';
import { shortId } from './text.ts';

interface EnqueueOptions {
  readonly field?: readonly string[];
  readonly key?: string;
  readonly account: string;
  readonly mode?: string;
  readonly wait?: true;
  readonly file?: string;
}

export function addEnqueue(program: Command, run: Runner): void {
  program
    .command('enqueue [operation]')
    .summary('enqueues one generation, or a file of them')
    .description(
      'Enqueues one generation. The same key is the same request for ever, so a repeated call pays once.',
    )
    .option('--field <name=value>', 'a field of the operation; any number of times', collect)
    .option('--key <key>', 'names the intent (default: a new one, which is printed)')
    .option('--account <name>', 'whose limits and key it uses', 'default')
    .option('--mode <mode>', 'async, or stream where the operation has streams')
    .option('--wait', 'waits for its end; exit code 0 only when it succeeded')
    .option('--file <path>', 'many instead: one JSON object a line, as the library takes them')
    .addHelpText(
      'after',
      `
Examples:
  $ onetake enqueue text-to-music --field prompt='a waltz' --field duration=30
  $ onetake enqueue text-to-music --field prompt='a waltz' --key order-12 --wait
  $ onetake enqueue --file jobs.ndjson

A line of a file: {"operation": …, "fields": {…}, "requestKey": …, …}`,
    )
    .action(
      run(async (context, operation: string | undefined, options: EnqueueOptions, command: Command) => {
        if (options.file !== undefined) {
          const alone = ['field', 'key', 'account', 'mode', 'wait'].find(
            (name) => command.getOptionValueSource(name) === 'cli',
          );
          if (operation !== undefined || alone !== undefined) {
            const other = alone === undefined ? 'an operation' : `--${alone}`;
            throw usageError(`--file: the lines say it all, so ${other} can't be given too.`);
          }
          return enqueueFile(context, options.file);
        }
        if (operation === undefined) {
          throw usageError('operation: missing.', `One of ${OPERATION_NAMES.join(', ')}; or --file <path>.`);
        }
        const fields = parseFields(operation, options.field ?? []);
        const { account, mode, key: requestKey = `cli-${randomUUID()}` } = options;
        return context.withClient(async (client) => {
          // The operation's own table checks what the type system can't see from here.
          const input = {
            operation,
            fields,
            requestKey,
            account,
            ...(mode === undefined ? {} : { mode }),
          } as unknown as EnqueueInput;
          const result = await client.enqueue(input);
          if ('refused' in result) throw new Error('an enqueue that waits was refused');
          const { id, state, created } = result;
          if (options.wait) {
            if (!context.terminal.json) context.terminal.note(`Request ${id}, key ${requestKey}`);
            return waitForEnd(context, client, id);
          }
          if (context.terminal.json)
            context.terminal.value({ id, state, created, requestKey, account, operation });
          else showEnqueued(context.terminal, { id, state, created, requestKey });
          return undefined;
        });
      }),
    );
}

function collect(value: string, before: readonly string[] = []): readonly string[] {
  return [...before, value];
}

function showEnqueued(
  terminal: Terminal,
  { id, state, created, requestKey }: { id: string; state: string; created: boolean; requestKey: string },
): void {
  terminal.block([
    ['id', id],
    ['state', created ? state : `${state} (this key was enqueued before; nothing new was made)`],
    ['request key', requestKey],
  ]);
  terminal.note(`Follow it: onetake requests show ${shortId(id)}`);
}

/** Prints the `requests show` object at the end; progress goes to stderr. */
async function waitForEnd({ terminal, signals }: Context, client: Client, id: string): Promise<number> {
  let shown = '';
  const onProgress = (request: RequestDetails) => {
    const status = progress(request);
    if (status !== shown && !terminal.json) terminal.note(`${shortId(id)}  ${status}`);
    shown = status;
  };
  try {
    const request = await client.waitForGeneration(id, { signal: signals.interrupt(), onProgress });
    onProgress(request);
    showRequest(terminal, request);
    return request.state === 'succeeded' ? EXIT.done : EXIT.failed;
  } catch (error) {
    if (!(error instanceof OnetakeError && error.code === 'wait_aborted')) throw error;
    throw new CommandError(
      'interrupted',
      `Stopped waiting. Request ${id} goes on.`,
      EXIT.interrupted,
      `Follow it: onetake requests show ${shortId(id)}`,
    );
  }
}

function progress({ state, waitingFor, attempts }: RequestDetails): string {
  if (state !== 'queued') return state;
  const last = attempts.at(-1);
  const answer = last === undefined ? null : (last.httpStatus ?? last.errorCode);
  // Without it, a provider that nobody can reach looks like a queue that is long.
  const returned = answer === null ? '' : `, attempt ${last?.attempt} came back (${answer})`;
  return `queued${returned}${waitingFor === null ? '' : `; waiting for: ${waitingFor}`}`;
}
