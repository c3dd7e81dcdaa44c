import { describe, expect, test } from 'vitest';
import { painter } from '../../src/cli/style.ts';
import { blockLines, type Column, tableLines } from '../../src/cli/table.ts';
import { displayWidth } from '../../src/cli/text.ts';

interface Row {
  readonly id: string;
  readonly count: number | null;
  readonly why: string;
}

const COLUMNS: readonly Column<Row>[] = [
  { title: 'id', value: (row) => row.id },
  { title: 'count', value: (row) => row.count, align: 'right' },
  { title: 'why', value: (row) => row.why, flexible: true },
];
const plainText = painter(false);

describe('tableLines', () => {
  test('aligns columns under their titles', () => {
    const rows = [
      { id: 'a', count: 7, why: 'first' },
      { id: 'bcd', count: null, why: 'x' },
    ];
    expect(tableLines(rows, COLUMNS, 80, plainText)).toEqual([
      'id   count  why',
      'a        7  first',
      'bcd      -  x',
    ]);
  });

  test('shortens the flexible column alone as long as that is enough', () => {
    const rows = [{ id: '01234567', count: 1, why: 'w'.repeat(100) }];
    const lines = tableLines(rows, COLUMNS, 40, plainText);
    expect(lines[1]).toBe(`01234567      1  ${'w'.repeat(22)}…`);
  });

  test.each([20, 30, 79, 80])('is never wider than %i columns', (width) => {
    const rows = [
      { id: 'i'.repeat(60), count: 123_456, why: 'because '.repeat(30) },
      { id: '雨'.repeat(40), count: 1, why: '歌'.repeat(90) },
    ];
    for (const line of tableLines(rows, COLUMNS, width, plainText)) {
      expect(displayWidth(line)).toBeLessThanOrEqual(width);
    }
  });

  test('goes on in further lines where a column wraps, and leaves nothing out', () => {
    const columns = [...COLUMNS.slice(0, 2), { ...(COLUMNS[2] as Column<Row>), flexible: 'wrap' as const }];
    const rows = [
      { id: '01234567', count: 1, why: 'open until 12:00:30Z, which is late' },
      { id: 'ab', count: 2, why: 'w'.repeat(30) },
      { id: 'ab', count: 3, why: 'first_response_deadline' },
    ];
    expect(tableLines(rows, columns, 38, plainText)).toEqual([
      'id        count  why',
      '01234567      1  open until 12:00:30Z,',
      '                 which is late',
      `ab            2  ${'w'.repeat(21)}`,
      `                 ${'w'.repeat(9)}`,
      'ab            3  first_response_',
      '                 deadline',
    ]);
  });

  test('what wraps gives way before what would be cut', () => {
    const columns: Column<Row>[] = [
      { title: 'operation', value: (row) => row.id, flexible: true },
      { title: 'task', value: (row) => row.why, flexible: 'wrap' },
    ];
    const rows = [{ id: 'video-to-video-music', count: 1, why: 'a'.repeat(36) }];
    expect(tableLines(rows, columns, 40, plainText)).toEqual([
      'operation             task',
      `video-to-video-music  ${'a'.repeat(18)}`,
      `                      ${'a'.repeat(18)}`,
    ]);
    // Down to where its pieces say nothing any more.
    expect(tableLines(rows, columns, 30, plainText)[1]).toBe(`video-to-video-…  ${'a'.repeat(12)}`);
  });

  test('colours after padding, so that columns stay aligned', () => {
    const columns = [
      { title: 'state', value: (row: Row) => row.id, format: () => 'red' as const },
      ...COLUMNS.slice(1),
    ];
    const [, line] = tableLines([{ id: 'open', count: 1, why: 'x' }], columns, 80, painter(true));
    expect(line).toBe('\u001b[31mopen \u001b[39m      1  x');
  });

  test('shows no control character of a stored text', () => {
    const [, line] = tableLines([{ id: 'a\u001b[31m', count: 1, why: 'b\nc' }], COLUMNS, 80, plainText);
    expect(line).toBe('a?[31m      1  b?c');
  });
});

describe('blockLines', () => {
  test('leaves out what there is nothing to say about, and wraps under the value', () => {
    const entries = [
      ['id', 'x'],
      ['reason', null],
      ['charge', 'possible: the outcome is unknown'],
    ] as const;
    expect(blockLines(entries, 30, plainText)).toEqual([
      'id      x',
      'charge  possible: the outcome',
      '        is unknown',
    ]);
  });
});
