import { expect, test } from 'vitest';
import { createClient } from '../../src/index.ts';
import { createSimulator } from '../../src/simulator.ts';
import { startEmbeddedPostgres, startTestStack } from '../../src/testing.ts';
import { createPoller, createWorker, migrate } from '../../src/worker.ts';

type Call = (given: never) => unknown;

const ID = '01890000-0000-7000-8000-000000000000';
const SONG = { operation: 'text-to-music', fields: { prompt: 'a' }, requestKey: 'k' } as const;
const client = createClient({ connectionString: 'postgres://nobody@127.0.0.1:1/none' });

/** Of these an object may be left out. */
const OPTIONAL: Readonly<Record<string, Call>> = {
  createWorker,
  createPoller,
  createSimulator,
  startTestStack,
  'client.enqueue with options': (given) => client.enqueue(SONG, given),
  'client.list': client.list,
  'client.listUnrefunded': client.listUnrefunded,
  'client.listAmbiguous': client.listAmbiguous,
  'client.waitForGeneration with options': (given) => client.waitForGeneration(ID, given),
  'client.onSettled with options': (given) => client.onSettled(() => {}, given),
};

const REQUIRED: Readonly<Record<string, Call>> = {
  createClient,
  migrate,
  startEmbeddedPostgres,
  'client.enqueue': client.enqueue,
  'client.resolve': client.resolve,
  'client.recover': client.recover,
  'client.overrideBreaker': client.overrideBreaker,
  'client.upsertAccount': client.upsertAccount,
  'client.cancel with a note': (given) => client.cancel(ID, given),
  'client.reopen with a note': (given) => client.reopen(ID, given),
  'client.acknowledge with a note': (given) => client.acknowledge(ID, given),
  'client.holdAccount with a note': (given) => client.holdAccount('default', null, given),
  'client.releaseAccount with a note': (given) => client.releaseAccount('default', null, given),
};

const refusals = [
  ...Object.entries(OPTIONAL).flatMap(([name, call]) =>
    [null, 'sk_a_key', 7].map((given) => ({ name, call, given })),
  ),
  ...Object.entries(REQUIRED).flatMap(([name, call]) =>
    [undefined, null, 'sk_a_key', 7].map((given) => ({ name, call, given })),
  ),
];

test.each(refusals)('$name refuses $given in place of an object', async ({ call, given }) => {
  const error = await Promise.resolve()
    .then(() => call(given as never))
    .catch((thrown: unknown) => thrown);
  expect(error).toMatchObject({ code: 'invalid_option' });
  expect((error as Error).message).not.toContain('a_key');
});

test('says what the object lacks where nothing was given', () => {
  const call: Call = createClient;
  expect(() => call(undefined as never)).toThrow('createClient needs `connectionString` or `pool`.');
  expect(() => call('sk_a_key' as never)).toThrow('options: expected an object, got a string.');
  expect(() => call([] as never)).toThrow('options: expected an object, got a list.');
});

test('a connection string is told by its form, and never repeated', async () => {
  const given = { connectionString: 'secret-host' };
  for (const call of [createClient, migrate, createWorker, createPoller, startTestStack] as Call[]) {
    const error = await Promise.resolve()
      .then(() => call(given as never))
      .catch((thrown: unknown) => thrown);
    expect(error).toMatchObject({
      code: 'invalid_option',
      message: expect.stringMatching(/^connectionString: it doesn't begin with postgres:\/\/ /),
      hint: expect.stringContaining('postgres://user:password@host:5432/database'),
    });
    expect((error as Error).message).not.toContain('secret');
  }
});

test('a pool is one of pg', () => {
  const call: Call = createClient;
  for (const pool of [null, 'postgres://127.0.0.1/none', {}]) {
    expect(() => call({ pool } as never)).toThrow('pool: expected a Pool of the package `pg`.');
  }
});
