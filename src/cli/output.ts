import { createInterface } from 'node:readline/promises';
import type { Environment } from '../runtime/environment.ts';
import type { ErrorReport } from './errors.ts';
import { type Paint, painter } from './style.ts';
import { blockLines, type Column, tableLines } from './table.ts';

export type { Format, Paint } from './style.ts';

// The only writer of stdout and stderr. stdout carries the result, stderr progress, hints and errors.

export interface Terminal {
  /** `--json`: exactly one JSON value on stdout. */
  readonly json: boolean;
  /** stdout is a terminal, so a person reads along. */
  readonly isInteractive: boolean;
  /** Columns of stdout; $COLUMNS or 80 when it isn't a terminal. */
  readonly columns: number;
  /** Colours for stdout; the text itself when there are none. */
  readonly paint: Paint;
  /** Colours for stderr. */
  readonly paintNote: Paint;
  /** Aborted when nobody reads stdout any more. */
  readonly closed: AbortSignal;
  /** Lines of the result, on stdout. */
  print(...lines: readonly string[]): void;
  /** The one JSON value, on stdout: a line, or laid out where a person reads it. */
  value(value: unknown): void;
  /** Fits a person's terminal, or $COLUMNS; in any other pipe nothing is cut, and a row is one line. */
  table<Row>(rows: readonly Row[], columns: readonly Column<Row>[]): void;
  block(entries: readonly (readonly [label: string, value: string | number | null | undefined])[]): void;
  /** Progress and hints, on stderr. */
  note(...lines: readonly string[]): void;
  error(report: ErrorReport): void;
  /** Tells what `about` says and asks, on stderr; undefined without a terminal to ask on. False on no, on Ctrl-D and on Ctrl-C. */
  confirm(question: string, ...about: readonly string[]): Promise<boolean | undefined>;
}

interface Output extends NodeJS.WritableStream {
  readonly isTTY?: boolean;
  readonly columns?: number;
}

export interface Streams {
  readonly stdin: NodeJS.ReadableStream & { readonly isTTY?: boolean };
  readonly stdout: Output;
  readonly stderr: Output;
}

const DEFAULT_COLUMNS = 80;
const FEWEST_COLUMNS = 40;
const UNBOUNDED = Number.MAX_SAFE_INTEGER;

export function createTerminal(
  streams: Streams,
  options: { readonly json: boolean; readonly environment: Pick<Environment, 'colour' | 'columns'> },
): Terminal {
  const { json, environment } = options;
  const closing = new AbortController();
  const stdout = writerOf(streams.stdout, () => closing.abort());
  const stderr = writerOf(streams.stderr, () => {});
  const paint = painter(environment.colour(streams.stdout.isTTY === true));
  const paintNote = painter(environment.colour(streams.stderr.isTTY === true));
  const isInteractive = streams.stdout.isTTY === true;
  const asked = isInteractive ? undefined : environment.columns();
  const own = isInteractive ? streams.stdout.columns : asked;
  const columns = Math.max(FEWEST_COLUMNS, own || DEFAULT_COLUMNS);
  const tableColumns = isInteractive || asked !== undefined ? columns : UNBOUNDED;
  const print = (...lines: readonly string[]) => stdout(lines);
  return {
    json,
    isInteractive,
    columns,
    paint,
    paintNote,
    closed: closing.signal,
    print,
    value: (value) => print(JSON.stringify(value, null, isInteractive ? 2 : 0)),
    table: (rows, those) => print(...tableLines(rows, those, tableColumns, paint)),
    block: (entries) => print(...blockLines(entries, columns, paint)),
    note: (...lines) => stderr(lines),
    error: ({ code, message, hint, problems }) => {
      if (json) stderr([JSON.stringify({ error: { code, message, hint: hint ?? null, problems } })]);
      else
        stderr([
          `${paintNote('red', 'error:')} ${message}`,
          ...(hint === undefined ? [] : [`hint: ${hint}`]),
        ]);
    },
    confirm: async (question, ...about) => {
      if (streams.stdin.isTTY !== true || streams.stderr.isTTY !== true) return undefined;
      stderr(about);
      return ask(streams, `${question} [y/N] `);
    },
  };
}

/** A reader that leaves early (`| head`) is no failure: what comes after is dropped. */
function writerOf(stream: NodeJS.WritableStream, onClosed: () => void): (lines: readonly string[]) => void {
  let isOpen = true;
  stream.on('error', () => {
    isOpen = false;
    onClosed();
  });
  return (lines) => {
    if (isOpen && lines.length > 0) stream.write(`${lines.join('\n')}\n`);
  };
}

async function ask({ stdin, stderr }: Streams, question: string): Promise<boolean> {
  const prompt = createInterface({ input: stdin, output: stderr });
  const left = new AbortController();
  prompt.on('SIGINT', () => left.abort());
  prompt.on('close', () => left.abort());
  try {
    return /^\s*y(es)?\s*$/i.test(await prompt.question(question, { signal: left.signal }));
  } catch {
    return false;
  } finally {
    prompt.close();
  }
}
