import type { Command } from 'commander';
import { OnetakeError } from '../core/errors.ts';
import type { RequestState } from '../core/generation-request.ts';
import type { OperatorNote } from '../postgres/operator-functions.ts';
import type { RequestRow, UnrefundedRow } from '../postgres/request-overview.ts';
import type { Environment } from '../runtime/environment.ts';
import { stateNamed, wholeNumber } from './arguments.ts';
import type { Runner } from './context.ts';
import { OUTCOME_UNKNOWN, reasonOf, refundOf, STATE_FORMAT, showRequest } from './request-view.ts';
import { duration, shortId } from './text.ts';

interface ListOptions {
  readonly state?: RequestState;
  readonly account?: string;
  readonly operation?: string;
  readonly key?: string;
  readonly limit: number;
}

export function addRequests(program: Command, run: Runner): void {
  const requests = program
    .command('requests')
    .summary('generation requests: where each is, and what it waits for')
    .description('Generation requests: where each is, and what it waits for.');
  requests
    .command('list')
    .description('The newest requests.')
    .option('--state <state>', 'only requests in this state', stateNamed)
    .option('--account <name>', 'only requests of this account')
    .option('--operation <name>', 'only requests of this operation')
    .option('--key <key>', 'only the request of this key, of each account')
    .option('--limit <n>', 'at most so many', wholeNumber('--limit', 1, 1_000), 50)
    .addHelpText('after', '\nExample:\n  $ onetake requests list --state queued --limit 20')
    .action(
      run(({ terminal, withClient }, { key, ...options }: ListOptions) =>
        withClient(async (client) => {
          const rows = await client.list({ ...options, ...(key === undefined ? {} : { requestKey: key }) });
          if (terminal.json) terminal.value(rows);
          else if (rows.length === 0) terminal.note('There are no such requests.');
          else {
            const now = Date.now();
            terminal.table<RequestRow>(rows, [
              { title: 'id', value: (row) => shortId(row.id) },
              { title: 'state', value: (row) => row.state, format: (row) => STATE_FORMAT[row.state] },
              { title: 'account', value: (row) => row.account, flexible: true },
              { title: 'operation', value: (row) => row.operation, flexible: true },
              { title: 'age', value: (row) => duration(now - row.createdAt.getTime()), align: 'right' },
              { title: 'charge', value: (row) => row.charge },
              {
                title: 'waiting for, or outcome',
                value: (row) => row.waitingFor ?? reasonOf(row),
                flexible: 'wrap',
              },
            ]);
            if (rows.some((row) => row.state === 'ambiguous')) terminal.note(`ambiguous: ${OUTCOME_UNKNOWN}`);
            if (rows.length === options.limit)
              terminal.note(`The newest ${rows.length}; --limit shows more.`);
          }
          return undefined;
        }),
      ),
    );
  requests
    .command('unrefunded')
    .description('What was paid for, came to nothing and has not been given back, oldest first.')
    .option('--account <name>', 'only of this account')
    .option('--limit <n>', 'at most so many', wholeNumber('--limit', 1, 1_000), 50)
    .addHelpText('after', '\nExample:\n  $ onetake requests unrefunded --account default')
    .action(
      run(({ terminal, withClient }, options: Pick<ListOptions, 'account' | 'limit'>) =>
        withClient(async (client) => {
          const rows = await client.listUnrefunded(options);
          if (terminal.json) terminal.value(rows);
          else if (rows.length === 0) terminal.note('Nothing that came to nothing is unrefunded.');
          else {
            const now = Date.now();
            terminal.table<UnrefundedRow>(rows, [
              { title: 'id', value: (row) => shortId(row.requestId) },
              { title: 'account', value: (row) => row.account, flexible: true },
              { title: 'operation', value: (row) => row.operation, flexible: true },
              { title: 'age', value: (row) => duration(now - row.since.getTime()), align: 'right' },
              { title: 'why', value: (row) => row.why.replaceAll('_', ' '), flexible: 'wrap' },
              { title: 'refunded', value: refundOf },
              { title: 'provider task', value: (row) => row.providerTaskId, flexible: 'wrap' },
            ]);
            terminal.note(
              'Ask the provider: a line stays until it says that the money is back.',
              "One that was looked at: onetake requests acknowledge ID --reason '…'",
            );
            if (rows.length === options.limit)
              terminal.note(`The oldest ${rows.length}; --limit shows more.`);
          }
          return undefined;
        }),
      ),
    );
  requests
    .command('show <id>')
    .description('One request with its attempts and files. The first 8 digits of the id are enough.')
    .addHelpText('after', '\nExample:\n  $ onetake requests show 0f3c1a2b')
    .action(
      run(({ terminal, withClient }, id: string) =>
        withClient(async (client) => {
          const request = await client.get(id);
          if (request === undefined) {
            throw new OnetakeError('request_not_found', 'There is no generation request with that id.', {
              hint: 'See `onetake requests list`.',
            });
          }
          showRequest(terminal, request, await client.listDecisions(request.id));
          return undefined;
        }),
      ),
    );
  requests
    .command('cancel <id>')
    .description(
      'Withdraws one that is queued: nothing more is sent. One that was submitted is refused: the provider can’t cancel.',
    )
    .requiredOption('--reason <text>', 'why, for the record')
    .option('--actor <name>', 'who decides (default: $ONETAKE_ACTOR, else the system user)')
    .addHelpText('after', "\nExample:\n  $ onetake requests cancel 0f3c1a2b --reason 'ordered by mistake'")
    .action(
      run(({ terminal, environment, withClient }, id: string, options: DecisionOptions) =>
        withClient(async (client) => {
          const resolution = await client.cancel(id, noteOf(environment, options));
          if (terminal.json) terminal.value(resolution);
          else terminal.print(`${resolution.id}: ${resolution.from} -> ${resolution.to}`);
          return undefined;
        }),
      ),
    );
  requests
    .command('acknowledge <id>')
    .description('Somebody has looked: ends what asks for attention, and changes nothing else.')
    .requiredOption('--reason <text>', 'what was found, for the record')
    .option('--actor <name>', 'who has looked (default: $ONETAKE_ACTOR, else the system user)')
    .addHelpText(
      'after',
      "\nExample:\n  $ onetake requests acknowledge 0f3c1a2b --reason 'refunded by support'",
    )
    .action(
      run(({ terminal, environment, withClient }, id: string, options: DecisionOptions) =>
        withClient(async (client) => {
          const resolution = await client.acknowledge(id, noteOf(environment, options));
          if (terminal.json) terminal.value(resolution);
          else terminal.print(`${resolution.id}: acknowledged, still ${resolution.to}`);
          return undefined;
        }),
      ),
    );
}

interface DecisionOptions {
  readonly reason: string;
  readonly actor?: string;
}

function noteOf(environment: Environment, { actor, reason }: DecisionOptions): OperatorNote {
  return { actor: actor ?? environment.actor(), reason };
}
