import type { Format, Paint, Terminal } from '../output.ts';
import { displayWidth, truncate, wrap } from '../text.ts';

/** The demo's page: lines that stay, and on a terminal a few at the bottom that are drawn again. */
export interface Screen {
  readonly paint: Paint;
  /** Lines as they are. */
  print(...lines: readonly string[]): void;
  /** A numbered heading. */
  act(title: string): void;
  /** A paragraph, wrapped. */
  say(text: string): void;
  /** One event, with the time since the start and a mark. */
  event(mark: string, format: Format, text: string): void;
  /** Keeps events back while `work` prints what belongs together. */
  together(work: () => Promise<void>): Promise<void>;
  /** Replaces the lines at the bottom. In a pipe they are not shown. */
  status(lines: readonly string[]): void;
  readonly seconds: () => number;
}

export const WIDTH = 80;
const INDENT = '  ';

/** With `--json` stdout is for the one value at the end, and the story goes to stderr. */
export function createScreen(terminal: Terminal): Screen {
  const stream = terminal.json ? process.stderr : process.stdout;
  const paint = terminal.json ? terminal.paintNote : terminal.paint;
  // Without colours it may be a terminal that knows no cursor movements either; a line that wraps would
  // be more lines than are taken back.
  const isLive = stream.isTTY === true && stream.columns >= WIDTH && paint('bold', '-') !== '-';
  const startedAt = performance.now();
  const seconds = () => (performance.now() - startedAt) / 1_000;
  let bottom: readonly string[] = [];
  let acts = 0;
  let heldBack: string[][] | undefined;

  const draw = (lines: readonly string[], nextBottom: readonly string[]) => {
    const erase = bottom.length === 0 ? '' : `\u001b[${bottom.length}A\u001b[J`;
    bottom = nextBottom;
    const text = [...lines, ...bottom].map((line) => `${line}\n`).join('');
    if (!terminal.closed.aborted) stream.write(erase + text);
  };
  const print = (...lines: readonly string[]) => draw(lines, bottom);
  return {
    paint,
    print,
    act(title) {
      acts += 1;
      print('', paint('bold', `${acts}  ${title}`), '');
    },
    say: (text) => print(...wrap(text, WIDTH - INDENT.length).map((line) => INDENT + line)),
    event(mark, format, text) {
      const time = `${seconds().toFixed(1)}s`.padStart(7);
      const lines = wrap(text, WIDTH - time.length - 3);
      const shown = lines.map((line, index) =>
        index === 0
          ? `${paint('dim', time)} ${paint(format, mark)} ${line}`
          : ' '.repeat(time.length + 3) + line,
      );
      if (heldBack === undefined) print(...shown);
      else heldBack.push(shown);
    },
    async together(work) {
      heldBack = [];
      try {
        await work();
      } finally {
        const events = heldBack;
        heldBack = undefined;
        for (const lines of events) print(...lines);
      }
    },
    status(lines) {
      if (isLive) draw([], lines);
    },
    seconds,
  };
}

/** `text`, cut or filled to `width`. */
export function fill(text: string, width: number): string {
  const cut = truncate(text, width);
  return cut + ' '.repeat(Math.max(0, width - displayWidth(cut)));
}
