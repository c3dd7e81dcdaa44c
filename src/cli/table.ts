import type { Format, Paint } from './style.ts';
import { displayWidth, plain, truncate, wrap, wrapHard } from './text.ts';

export interface Column<Row> {
  readonly title: string;
  readonly value: (row: Row) => string | number | null;
  readonly align?: 'right';
  /** Gives way first when the line is too long. `wrap`: goes on in further lines instead of being cut. */
  readonly flexible?: true | 'wrap';
  readonly format?: (row: Row) => Format | undefined;
}

const GAP = '  ';
/** A column narrower than this says nothing any more. */
const NARROWEST = 3;
/** Text in narrower pieces is hard to put together again. */
const NARROWEST_PIECE = 12;

/** A title line and the lines of each row, none of them wider than `width`. */
export function tableLines<Row>(
  rows: readonly Row[],
  columns: readonly Column<Row>[],
  width: number,
  paint: Paint,
): string[] {
  const cells = rows.map((row) => columns.map((column) => plain(String(column.value(row) ?? '-'))));
  const natural = columns.map((column, index) =>
    Math.max(displayWidth(column.title), ...cells.map((line) => displayWidth(line[index] as string))),
  );
  const widths = fitted(natural, columns, width - GAP.length * (columns.length - 1));
  const line = (texts: readonly string[], formats: readonly (Format | undefined)[]) =>
    texts
      .map((text, index) => {
        const cell = pad(text, widths[index] as number, columns[index], index === columns.length - 1);
        const format = formats[index];
        return format === undefined ? cell : paint(format, cell);
      })
      .join(GAP)
      .trimEnd();
  const lines = (texts: readonly string[], formats: readonly (Format | undefined)[]) => {
    const parts = texts.map((text, index) => partsOf(text, widths[index] as number, columns[index]));
    return Array.from({ length: Math.max(...parts.map((each) => each.length)) }, (_, at) =>
      line(
        parts.map((each) => each[at] ?? ''),
        formats,
      ),
    );
  };
  return [
    ...lines(
      columns.map((column) => column.title),
      columns.map(() => 'dim'),
    ),
    ...rows.flatMap((row, index) =>
      lines(
        cells[index] as string[],
        columns.map((column) => column.format?.(row)),
      ),
    ),
  ];
}

/** `label  value` lines, values wrapped under themselves. Without a value there is no line. */
export function blockLines(
  entries: readonly (readonly [label: string, value: string | number | null | undefined])[],
  width: number,
  paint: Paint,
): string[] {
  const present = entries.filter(([, value]) => value !== null && value !== undefined && value !== '');
  const indent = Math.max(0, ...present.map(([label]) => label.length)) + GAP.length;
  return present.flatMap(([label, value]) =>
    wrap(plain(String(value)), Math.max(20, width - indent)).map((text, index) =>
      index === 0 ? `${paint('dim', label.padEnd(indent))}${text}` : `${' '.repeat(indent)}${text}`,
    ),
  );
}

function partsOf(text: string, width: number, column: Column<never> | undefined): string[] {
  return column?.flexible === 'wrap' ? wrapHard(text, width) : [truncate(text, width)];
}

function pad(text: string, width: number, column: Column<never> | undefined, isLast: boolean): string {
  const filling = ' '.repeat(Math.max(0, width - displayWidth(text)));
  if (column?.align === 'right') return filling + text;
  return isLast ? text : text + filling;
}

/**
 * Takes what is too much from the widest column that wraps, since it loses nothing, then from the widest flexible one,
 * then from the widest of all.
 */
function fitted(natural: readonly number[], columns: readonly Column<never>[], available: number): number[] {
  const widths = [...natural];
  const wraps = (index: number) => columns[index]?.flexible === 'wrap';
  const isFlexible = (index: number) => columns[index]?.flexible !== undefined;
  for (const { mayShrink, least } of [
    { mayShrink: wraps, least: NARROWEST_PIECE },
    { mayShrink: isFlexible, least: NARROWEST },
    { mayShrink: () => true, least: NARROWEST },
  ]) {
    for (;;) {
      if (widths.reduce((sum, each) => sum + each, 0) <= available) return widths;
      const widest = widths
        .map((each, index) => ({ each, index }))
        .filter(({ each, index }) => each > least && mayShrink(index))
        .sort((a, b) => b.each - a.each)[0];
      if (widest === undefined) break;
      widths[widest.index] = widest.each - 1;
    }
  }
  return widths;
}
