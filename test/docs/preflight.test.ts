import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { FIELD_LIMITS, type FieldLimit, LIMITS_AS_OF } from '../../src/core/field-limits.ts';
import { REPOSITORY, readPage, tableRows } from './pages.ts';

const page = readPage('docs/preflight.md');

test('lists every limit as the code has it, and the day they were read', () => {
  const listed = tableRows(page, 'limited').map((row) => row.slice(0, 3));
  const actual = Object.entries(FIELD_LIMITS).flatMap(([operation, limits]) =>
    Object.entries(limits).map(([field, limit]) => [`\`${operation}\``, `\`${field}\``, inWords(limit)]),
  );
  expect(listed).toEqual(actual);
  expect(page.text).toContain(`As of ${LIMITS_AS_OF}:`);
});

test('lists every code of a problem', () => {
  const source = readFileSync(join(REPOSITORY, 'src/core/field-problems.ts'), 'utf8');
  const type = source.split('export type FieldProblemCode =')[1]?.split(';')[0] ?? '';
  const codes = [...type.matchAll(/\| '(\w+)'/g)].map(([, code]) => `\`${code}\``);
  expect(codes.length).toBeGreaterThan(10);
  expect(tableRows(page, 'problem').map(([code]) => code)).toEqual(codes);
});

function inWords(limit: FieldLimit): string {
  const grouped = (value: number) => value.toLocaleString('en-US');
  switch (limit.kind) {
    case 'text':
      return `${grouped(limit.maxLength)} characters`;
    case 'number':
      return `${limit.min} to ${limit.max}`;
    case 'choice':
      return limit.values.map((value) => `\`${value}\``).join(', ');
    case 'media':
      return [
        `${grouped(limit.maxBytes)} bytes`,
        `${limit.maxSeconds} s`,
        ...[limit.containers, limit.codecs]
          .filter((list) => list !== undefined)
          .map((list) => list.join(', ')),
      ].join('; ');
    case 'segments':
      return [
        `1 to ${limit.maxCount}`,
        limit.order === 'starts' ? `${limit.minSpacing} s apart` : 'without gaps',
        `prompts of 1 to ${limit.maxPromptLength} characters`,
        ...(limit.labels === undefined ? [] : [`labels ${limit.labels.join(', ')}`]),
        ...(limit.maxLength === undefined ? [] : [`${grouped(limit.maxLength)} characters of JSON`]),
      ].join('; ');
  }
}
