import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { reportOf } from '../../src/cli/errors.ts';
import { OnetakeError, type OnetakeErrorCode } from '../../src/core/errors.ts';
import { OPERATIONS, type OperationName } from '../../src/core/operations.ts';
import * as index from '../../src/index.ts';
import * as simulator from '../../src/simulator.ts';
import * as testing from '../../src/testing.ts';
import * as worker from '../../src/worker.ts';
import { prose, REPOSITORY, readPage, tableRows } from './pages.ts';

const page = readPage('docs/api.md');
const source = (name: string) => readFileSync(join(REPOSITORY, 'src', name), 'utf8');
const code = (cell = '') => [...cell.matchAll(/`([^`]+)`/g)].map(([, text]) => text ?? '');

/** What stands between `start` and the first line that is `end`. */
function part(text: string, start: string, end: string): string {
  const from = text.indexOf(start);
  expect(from, start).toBeGreaterThan(-1);
  return text.slice(from, text.indexOf(`\n${end}\n`, from));
}

test('lists everything that an entry exports', () => {
  const entries = {
    onetake: index,
    'onetake/worker': worker,
    'onetake/simulator': simulator,
    'onetake/testing': testing,
  };
  const rows = new Map(tableRows(page, 'entry').map(([entry, , has]) => [code(entry)[0], code(has)]));
  for (const [entry, module] of Object.entries(entries)) {
    expect([entry, rows.get(entry)?.sort()]).toEqual([entry, Object.keys(module).sort()]);
  }
});

test('lists every member of the client, and no other', () => {
  const members = part(source('runtime/client.ts'), 'export interface Client {', '}').matchAll(
    /^ {2}(\w+)\(/gm,
  );
  const listed = tableRows(page, 'member').map(([member]) => /^`(\w+)\(/.exec(member ?? '')?.[1]);
  expect(listed.sort()).toEqual([...members].map(([, name]) => name).sort());
});

test('lists every error code with the exit code of the command line', () => {
  const codes = [
    ...part(source('core/errors.ts'), 'export type OnetakeErrorCode =', '').matchAll(/'(\w+)'/g),
  ].map(([, name]) => name as OnetakeErrorCode);
  expect(codes.length).toBeGreaterThan(20);
  const listed = tableRows(page, 'code').map(([name, exit]) => [code(name)[0], Number(exit)]);
  expect(listed).toEqual(codes.map((name) => [name, reportOf(new OnetakeError(name, 'x')).exitCode]));
});

test('lists every option of enqueue, and of a process', () => {
  const known = (file: string) => {
    const [list = ''] = part(source(file), 'const KNOWN = [', '').split(']', 1);
    return [...list.matchAll(/'(\w+)'/g)].map(([, name]) => name);
  };
  const listed = (header: string) => tableRows(page, header).map(([name]) => code(name)[0]);
  expect(listed('option').sort()).toEqual(known('runtime/enqueue-options.ts').sort());
  expect(listed('process option').sort()).toEqual(known('runtime/process-options.ts').sort());
});

test.each(Object.keys(OPERATIONS) as OperationName[])(
  'lists the fields of %s: type, whether required, and what is sent when it is left out',
  (name) => {
    const { fields, defaults } = OPERATIONS[name];
    const listed = tableRows({ ...page, text: sectionOf(name) }, 'field').map(
      ([field, type, note, leftOut]) => ({
        field: code(field)[0],
        type,
        required: /^required/.test(note ?? ''),
        leftOut: code(leftOut)[0],
      }),
    );
    const actual = Object.entries(fields).map(([field, spec]) => ({
      field,
      type: spec.type,
      required: spec.required === true,
      leftOut: defaults[field],
    }));
    const byName = (a: { field?: string | undefined }, b: { field?: string | undefined }) =>
      (a.field ?? '') < (b.field ?? '') ? -1 : 1;
    expect(listed.sort(byName)).toEqual(actual.sort(byName));
  },
);

/** From its heading to the next one. */
function sectionOf(heading: string): string {
  return prose(page).split(`### ${heading}\n`)[1]?.split(/^#/m)[0] ?? '';
}
