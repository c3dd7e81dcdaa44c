import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { OPERATION_NAMES, OPERATIONS } from '../../src/core/operations.ts';
import { REPOSITORY, readPage, tableRows } from './pages.ts';

const page = readPage('docs/results.md');

test('lists every operation as the table in the code has it', () => {
  const minutes = (ms: number) => `${ms / 60_000} min`;
  const actual = OPERATION_NAMES.map((name) => {
    const { path, result, maxRunMs, longer } = OPERATIONS[name];
    const more = longer === undefined ? '' : `; with \`${longer.field}\` ${minutes(longer.maxRunMs)}`;
    return [`\`${name}\``, `\`POST ${path}\``, `\`${result}\``, `${minutes(maxRunMs)}${more}`];
  });
  expect(tableRows(page, 'operation')).toEqual(actual);
});

test('lists every warning', () => {
  const sources = [
    'core/delivery.ts',
    'provider/sonilo/decode-result.ts',
    'storage/fetch-result.ts',
    'lifecycle/settle-stream.ts',
  ];
  const found = sources.flatMap((name) => {
    const source = readFileSync(join(REPOSITORY, 'src', name), 'utf8');
    return [...source.matchAll(/warnings\.(?:push|add)\('(\w+)'\)|warning: '(\w+)'/g)];
  });
  const listed = tableRows(page, 'warning').map(([warning]) => warning);
  expect(listed.sort()).toEqual(found.map(([, one, other]) => `\`${one ?? other}\``).sort());
});
