import { open } from 'node:fs/promises';
import type { Client } from '../runtime/client.ts';
import type { EnqueueInput } from '../runtime/enqueue-options.ts';
import type { Context } from './context.ts';
import { CommandError, EXIT, usageError } from './errors.ts';

/** Lines of one transaction; a file that ends in the middle is simply given again, since its keys are known. */
const BATCH = 1_000;
/** Refusals that a person is shown; `--json` holds them all. */
const SHOWN = 10;

interface Line {
  readonly line: number;
  readonly input: EnqueueInput;
}

interface RefusedLine {
  readonly line: number;
  readonly code: string;
  readonly field: string | null;
  readonly message: string;
}

/** Enqueues the inputs of a file, one JSON object a line; exit code 1 when any was refused. */
export async function enqueueFile(context: Context, path: string): Promise<number> {
  const { terminal, signals } = context;
  const interrupt = signals.interrupt();
  return context.withClient(async (client) => {
    const totals = { created: 0, existing: 0 };
    const refused: RefusedLine[] = [];
    let lines = 0;
    for await (const batch of batchesOf(path)) {
      if (interrupt.aborted) {
        throw new CommandError('interrupted', `Stopped after ${lines} lines.`, EXIT.interrupted, AGAIN);
      }
      await enqueueBatch(client, batch, totals, refused);
      lines += batch.length;
      if (!terminal.json) terminal.note(`${lines} lines`);
    }
    if (terminal.json) terminal.value({ lines, ...totals, refused });
    else {
      terminal.block([
        ['created', totals.created],
        ['there before', totals.existing],
        ['refused', refused.length],
      ]);
      for (const { line, message } of refused.slice(0, SHOWN)) terminal.note(`line ${line}: ${message}`);
      if (refused.length > SHOWN) terminal.note(`and ${refused.length - SHOWN} more: --json tells of all.`);
    }
    return refused.length === 0 ? EXIT.done : EXIT.failed;
  });
}

const AGAIN = 'Run it again to go on: what is there already is not made twice.';

async function enqueueBatch(
  client: Client,
  batch: readonly Line[],
  totals: { created: number; existing: number },
  refused: RefusedLine[],
): Promise<void> {
  const results = await client.enqueue(batch.map(({ input }) => input));
  for (const [position, result] of results.entries()) {
    const line = (batch[position] as Line).line;
    if (!('refused' in result)) totals[result.created ? 'created' : 'existing']++;
    else if (result.refused === 'breaker_open') {
      refused.push({ line, code: result.refused, field: null, message: 'The breaker is open.' });
    } else {
      const { refused: code, field, message } = result;
      refused.push({ line, code, field, message });
    }
  }
}

async function* batchesOf(path: string): AsyncGenerator<Line[]> {
  let batch: Line[] = [];
  let line = 0;
  for await (const text of linesOf(path)) {
    line++;
    if (text.trim() === '') continue;
    batch.push({ line, input: parsed(text, line) });
    if (batch.length === BATCH) {
      yield batch;
      batch = [];
    }
  }
  if (batch.length > 0) yield batch;
}

/** Without the path, which may tell of a customer. */
const OPEN_PROBLEMS: Readonly<Record<string, string>> = {
  ENOENT: 'there is no such file',
  ENOTDIR: 'there is no such file',
  EACCES: 'this user may not read it',
};

/** A name that is wrong is the caller's to put right. */
async function* linesOf(path: string): AsyncGenerator<string> {
  const file = await open(path).catch((error: NodeJS.ErrnoException) => {
    throw usageError(
      `--file: ${OPEN_PROBLEMS[error.code ?? ''] ?? `it can't be read (${error.code ?? 'unknown'})`}.`,
    );
  });
  try {
    if (!(await file.stat()).isFile()) throw usageError('--file: expected a file.');
    yield* file.readLines();
  } finally {
    await file.close().catch(() => {});
  }
}

/** Never with what the line holds. */
function parsed(text: string, line: number): EnqueueInput {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    throw usageError(`--file: line ${line} is no JSON.`, `Lines before it may have been enqueued. ${AGAIN}`);
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return value as EnqueueInput;
  const { submitBefore } = value as { submitBefore?: unknown };
  if (typeof submitBefore !== 'string') return value as EnqueueInput;
  return { ...value, submitBefore: new Date(submitBefore) } as EnqueueInput;
}
