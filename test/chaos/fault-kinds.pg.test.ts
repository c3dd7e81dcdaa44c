import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Client, createClient } from '../../src/index.ts';
import type { OnetakeConfig } from '../../src/runtime/define-config.ts';
import { migrate } from '../../src/worker.ts';
import { type RawServer, rawServer, response } from '../provider/sonilo/raw-server.ts';
import { type Child, startChild } from '../support/children.ts';
import { type DatabaseProxy, databaseProxy } from '../support/database-proxy.ts';
import { createTestDatabase, type TestDatabase } from '../support/test-database.ts';
import { unusedPort } from '../support/unused-port.ts';
import { waitFor } from '../support/wait-for.ts';
import { FAULT_KINDS, type FaultKind } from './fault-kinds.ts';

// Each kind of fault alone, by a worker in a process of its own, with an account, a breaker and a provider of its
// own; POSTs are counted at the provider's socket. `ONETAKE_FAULT_REQUESTS=100` is the run of record.

const REQUESTS = Number(process.env['ONETAKE_FAULT_REQUESTS'] ?? 3);
const LEASE_MS = 60_000;
/** For a machine on which much else runs: nothing here is decided by how long it takes. */
const PATIENCE_MS = 60_000 + REQUESTS * 1_000;
const TIMEOUT_MS = 3 * PATIENCE_MS;

/** What breaks is not the wire but a process or the database; told by their names below. */
const PROCESS_KINDS = ['killed-waiting', 'killed-before', 'stopped', 'database-away', 'same-key'] as const;

const slug = (name: string) => name.replaceAll(/[^A-Za-z0-9]+/g, '-');
const servers = new Map<string, RawServer>();
/** POSTs that each request's provider had seen when its kind was over. */
const seenBefore = new Map<string, number>();
const figures: string[] = [];
let database: TestDatabase;
let proxy: DatabaseProxy;
let client: Client;
let config: OnetakeConfig;
let worker: Child;
/** What the providers of the process kinds do with a POST that they have read. */
let onPost: (write: (bytes: Buffer) => void, prompt: string) => void = () => undefined;

function startWorker(more: object = {}): Promise<Child> {
  const child = startChild({
    file: join(import.meta.dirname, '..', 'support', 'worker-child.ts'),
    env: {
      ONETAKE_TEST_CHILD: JSON.stringify({
        role: 'worker',
        config,
        connectionString: proxy.connectionString,
        apiKey: 'sk_test_key',
        ...more,
      }),
    },
  });
  return child
    .message<{ ready?: number }>((message) => message.ready === child.pid, 'the worker runs', PATIENCE_MS)
    .then(() => child);
}

async function baseUrlOf(kind: FaultKind): Promise<string> {
  if (kind.at === 'unknown_host') return 'https://nonexistent.invalid';
  if (kind.at === 'refused_port') return `http://127.0.0.1:${await unusedPort()}`;
  const server = await rawServer(kind.behaviour ?? {});
  servers.set(slug(kind.name), server);
  return kind.secure === true ? `https://localhost:${server.port}` : `http://127.0.0.1:${server.port}`;
}

beforeAll(async () => {
  database = await createTestDatabase();
  proxy = await databaseProxy(database.connectionString);
  const providers: Record<string, { baseUrl: string }> = {};
  for (const kind of FAULT_KINDS) providers[slug(kind.name)] = { baseUrl: await baseUrlOf(kind) };
  for (const name of PROCESS_KINDS) {
    const server = await rawServer({
      onRequest: (socket, { body }) =>
        onPost((bytes) => socket.write(bytes), new URLSearchParams(body).get('prompt') ?? ''),
    });
    servers.set(name, server);
    providers[name] = { baseUrl: `http://127.0.0.1:${server.port}` };
  }
  const spoolDirectory = await mkdtemp(join(tmpdir(), 'onetake-spool-'));
  const breaker = { failureThreshold: 1_000 };
  config = {
    providers,
    accounts: Object.fromEntries(
      Object.keys(providers).map((provider) => [
        provider,
        {
          provider,
          apiKeyEnv: 'SONILO_API_KEY',
          requestsPerMinute: 100_000,
          maxConcurrentGenerations: 10_000,
        },
      ]),
    ),
    operations: {
      'text-to-music': {
        breaker,
        // A worker that is stopped by a signal must find its answer in time afterwards, on any machine.
        deadlines: { connectMs: 10_000, firstResponseMs: 50_000, submissionMs: 55_000 },
        leaseMs: LEASE_MS,
      },
      'video-to-music': {
        breaker,
        deadlines: { connectMs: 1_000, firstResponseMs: 1_500, submissionMs: 2_000 },
        leaseMs: LEASE_MS,
      },
    },
    worker: { concurrency: 200, rescueIntervalMs: 200, spoolDirectory },
  };
  await migrate({ connectionString: database.connectionString, config });
  client = createClient({ connectionString: database.connectionString });
  worker = await startWorker();
  return async () => {
    await rm(spoolDirectory, { recursive: true, force: true });
  };
}, 120_000);

afterAll(async () => {
  await worker?.kill();
  await client?.stop();
  await proxy?.stop();
  await database?.drop();
  if (process.env['ONETAKE_FAULT_REQUESTS'] !== undefined) {
    process.stdout.write(`${['kind | requests | POSTs | states', ...figures].join('\n')}\n`);
  }
}, 60_000);

/** All of them in one transaction, so that they are there at once. */
async function enqueue(account: string, impatient = false): Promise<void> {
  const tx = await database.pool({ max: 1 }).connect();
  await tx.query('begin');
  for (let n = 1; n <= REQUESTS; n++) {
    const prompt = `${account} ${n}`;
    const song = impatient
      ? ({ operation: 'video-to-music', fields: { prompt, video_url: 'https://example.com/a.mp4' } } as const)
      : ({ operation: 'text-to-music', fields: { prompt } } as const);
    await client.enqueue({ ...song, requestKey: prompt, account }, { tx });
  }
  await tx.query('commit');
  tx.release();
}

interface Facts {
  readonly prompt: string;
  readonly state: string;
  readonly reason: string | null;
  readonly charge: string;
  readonly attempts: number;
  readonly settled: number;
  readonly refused: number;
  /** Attempts that say *unsent* without a proof that no header went out, or the other way round. */
  readonly unproven: number;
}

function factsOf(account: string): Promise<Facts[]> {
  return database.query<Facts & Record<string, unknown>>(
    `select r.request_key as prompt, r.state, r.state_reason as reason, r.charge, count(a.id)::int as attempts,
  count(a.settled_at)::int as settled, count(*) filter (where a.certainty = 'refused')::int as refused,
  count(*) filter (where (a.certainty = 'unsent') is distinct from (a.headers_sent is false
    and a.headers_sent_proof = 'oracle') and a.settled_by = 'worker')::int as unproven
from onetake.generation_requests r
left join onetake.submission_attempts a on a.request_id = r.id
where r.account = $1
group by r.id
order by r.created_at`,
    [account],
  );
}

function postsOf(account: string): Map<string, number> {
  const posts = new Map<string, number>();
  for (const { line, body } of servers.get(account)?.requests ?? []) {
    // A refused key is tried with a free call, now and then.
    if (line === 'GET /v1/account/services') continue;
    expect(line).toMatch(/^POST \/v1\/(text|video)-to-music$/);
    const prompt = new URLSearchParams(body).get('prompt') ?? '';
    posts.set(prompt, (posts.get(prompt) ?? 0) + 1);
  }
  return posts;
}

const total = (posts: Map<string, number>) => [...posts.values()].reduce((sum, count) => sum + count, 0);

/** Nobody submits what is left of a kind while the next one runs. */
async function endOf(account: string, name: string): Promise<void> {
  const facts = await factsOf(account);
  const states = new Map<string, number>();
  for (const { state } of facts) states.set(state, (states.get(state) ?? 0) + 1);
  const posts = total(postsOf(account));
  const shown = [...states].map(([state, count]) => `${count} ${state}`).join(', ');
  figures.push(`${name} | ${facts.length} | ${posts} | ${shown}`);
  await waitFor(
    async () => {
      const waiting = await database.query<{ id: string; state: string }>(
        `select id, state from onetake.generation_requests where account = $1 and state in ('queued', 'submitting')`,
        [account],
      );
      for (const { id, state } of waiting) {
        if (state !== 'queued') continue;
        // It may be on its way meanwhile; then it is looked at again.
        await client.cancel(id, { actor: 'test', reason: 'its kind is over' }).catch(() => undefined);
      }
      return waiting.length === 0;
    },
    { what: 'nothing of it to wait any more', timeoutMs: PATIENCE_MS },
  );
  for (const [prompt, count] of postsOf(account)) seenBefore.set(`${account}/${prompt}`, count);
}

test.each(FAULT_KINDS.map((kind) => [kind.name, kind] as const))(
  '%s',
  async (name, kind) => {
    const account = slug(name);
    await enqueue(account, kind.impatient);
    const facts = await waitFor(
      async () => {
        const now = await factsOf(account);
        const met = now.filter(({ settled }) => settled > 0);
        // A refusal holds or pauses the account, and what was not submitted by then waits.
        const haveMet = kind.posts === 'refusals' ? met.length > 0 : met.length === REQUESTS;
        return haveMet && now.every(({ state }) => state !== 'submitting') && now;
      },
      { what: `every request to have met ${name}`, timeoutMs: PATIENCE_MS },
    );
    const posts = postsOf(account);
    expect(facts).toHaveLength(REQUESTS);
    for (const { prompt, state, reason, attempts, refused, unproven } of facts) {
      const arrived = posts.get(prompt) ?? 0;
      expect(unproven, prompt).toBe(0);
      if (kind.eitherSide === true) {
        expect(arrived).toBe(0);
        expect(['queued', 'ambiguous']).toContain(state);
        continue;
      }
      if (attempts === 0) {
        expect({ state, arrived }).toEqual({ state: 'queued', arrived: 0 });
        continue;
      }
      expect({ state, reason: reason ?? '' }, prompt).toEqual({ state: kind.state, reason: kind.reason });
      if (kind.posts === 'refusals') {
        expect(arrived).toBeLessThanOrEqual(refused);
        expect(refused).toBe(attempts);
      } else {
        expect(arrived, prompt).toBe(kind.posts);
      }
    }
    await endOf(account, name);
  },
  TIMEOUT_MS,
);

const ACCEPT = (prompt: string) => response(202, JSON.stringify({ task_id: `task of ${prompt}` }));

/** Waits until each of them is as told, and has been posted as often as told. */
async function expectAll(account: string, posts: number, expected: Partial<Facts>): Promise<void> {
  const facts = await waitFor(
    async () => {
      const now = await factsOf(account);
      return now.every(({ state }) => state === expected.state) && now;
    },
    { what: `all of ${account} to be ${expected.state}`, timeoutMs: PATIENCE_MS },
  );
  expect(facts).toHaveLength(REQUESTS);
  for (const fact of facts) expect(fact).toMatchObject({ ...expected, unproven: 0 });
  const arrived = postsOf(account);
  for (const { prompt } of facts) expect(arrived.get(prompt) ?? 0, prompt).toBe(posts);
}

/** Every POST of the account is in, and none is answered: what answers them all. */
async function allHeld(account: string): Promise<() => void> {
  const held: (() => void)[] = [];
  onPost = (write, prompt) => held.push(() => write(ACCEPT(prompt)));
  await enqueue(account);
  await waitFor(() => total(postsOf(account)) === REQUESTS, {
    what: 'every POST to be in',
    timeoutMs: PATIENCE_MS,
  });
  return () => {
    for (const answer of held) answer();
  };
}

test(
  'killed while it waits for the answers',
  async () => {
    const account = 'killed-waiting';
    await allHeld(account);
    await worker.kill('SIGKILL');
    worker = await startWorker();
    await database.passTime(LEASE_MS + 1);
    await expectAll(account, 1, {
      state: 'ambiguous',
      reason: 'worker_lost',
      charge: 'possible',
      attempts: 1,
    });
    await endOf(account, 'SIGKILL of the worker that waits for the answers');
  },
  TIMEOUT_MS,
);

test(
  'killed after its intent and before the POST',
  async () => {
    const account = 'killed-before';
    await worker.kill('SIGKILL');
    const withheld = await startWorker({ withholdKey: true });
    await enqueue(account);
    await waitFor(async () => (await factsOf(account)).every(({ state }) => state === 'submitting'), {
      what: 'every intent',
      timeoutMs: PATIENCE_MS,
    });
    await withheld.kill('SIGKILL');
    worker = await startWorker();
    await database.passTime(LEASE_MS + 1);
    await expectAll(account, 0, {
      state: 'ambiguous',
      reason: 'worker_lost',
      charge: 'possible',
      attempts: 1,
    });
    await endOf(account, 'SIGKILL between intent and POST');
  },
  TIMEOUT_MS,
);

test(
  'stopped beyond its lease, and then told that all were accepted',
  async () => {
    const account = 'stopped';
    const answerAll = await allHeld(account);
    const stopped = worker;
    stopped.process.kill('SIGSTOP');
    await database.passTime(LEASE_MS + 1);
    worker = await startWorker();
    await waitFor(async () => (await factsOf(account)).every(({ state }) => state === 'ambiguous'), {
      what: 'somebody else to freeze them',
      timeoutMs: PATIENCE_MS,
    });
    answerAll();
    stopped.process.kill('SIGCONT');
    await expectAll(account, 1, { state: 'accepted', charge: 'charged', attempts: 1 });
    await stopped.kill('SIGKILL');
    await endOf(account, 'SIGSTOP beyond the lease, then a 202');
  },
  TIMEOUT_MS,
);

test(
  'accepted while the database is away',
  async () => {
    const account = 'database-away';
    const answerAll = await allHeld(account);
    await proxy.down();
    answerAll();
    const unsettled = () =>
      worker.messages.filter((message) => (message as { name?: string }).name === 'submission:unsettled');
    await waitFor(() => unsettled().length >= REQUESTS, {
      what: 'every outcome to be told to the log',
      timeoutMs: PATIENCE_MS,
    });
    await proxy.up();
    await expectAll(account, 1, { state: 'accepted', charge: 'charged', attempts: 1 });
    await endOf(account, 'the database away when the 202s come');
  },
  TIMEOUT_MS,
);

test(
  'enqueued five times with one key, by two clients at once',
  async () => {
    const account = 'same-key';
    onPost = (write, prompt) => write(ACCEPT(prompt));
    const other = createClient({ connectionString: database.connectionString });
    const keys = Array.from({ length: REQUESTS }, (_, n) => `${account} ${n + 1}`);
    const ids = await Promise.all(
      keys.map(async (key) => {
        const song = {
          operation: 'text-to-music',
          fields: { prompt: key },
          requestKey: key,
          account,
        } as const;
        const results = await Promise.all(
          [client, other, client, other, client].map((either) => either.enqueue(song)),
        );
        return new Set(results.map((result) => ('id' in result ? result.id : 'refused'))).size;
      }),
    );
    await other.stop();
    expect(ids.every((distinct) => distinct === 1)).toBe(true);
    await expectAll(account, 1, { state: 'accepted', charge: 'charged', attempts: 1 });
    await endOf(account, 'one key enqueued five times');
  },
  TIMEOUT_MS,
);

test(
  'and nothing of them was sent again since',
  async () => {
    await database.passTime(30 * 60_000);
    await waitFor(
      async () => {
        const [row] = await database.query<{ due: number }>(
          `select count(*)::int as due from onetake.generation_requests where state in ('queued', 'submitting')`,
        );
        return row?.due === 0;
      },
      { what: 'nothing to be left to submit', timeoutMs: PATIENCE_MS },
    );
    const seen = new Map<string, number>();
    for (const account of servers.keys()) {
      for (const [prompt, count] of postsOf(account)) seen.set(`${account}/${prompt}`, count);
    }
    expect(Object.fromEntries(seen)).toEqual(Object.fromEntries(seenBefore));
    // A POST is one paid submission: 1, and one more for each definite refusal.
    const [row] = await database.query<{ requests: number; more: number }>(
      `select count(*)::int as requests, count(*) filter (where posts > 1 + refusals)::int as more
from (
  select count(*) filter (where a.headers_sent is not false) as posts,
    count(*) filter (where a.certainty = 'refused') as refusals
  from onetake.submission_attempts a group by a.request_id
) each_request`,
    );
    expect(row?.more).toBe(0);
  },
  TIMEOUT_MS,
);
