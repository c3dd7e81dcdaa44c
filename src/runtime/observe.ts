import { withDeadline } from '../lifecycle/pause.ts';
import { listAccounts } from '../postgres/account-holds.ts';
import { listBreakerStatus } from '../postgres/breaker-history.ts';
import { Database } from '../postgres/database.ts';
import { countAttention, countLiveRequests } from '../postgres/fleet-facts.ts';
import { type Answer, createHttpServer } from '../telemetry/http-server.ts';
import { createMetrics, type FleetFacts } from '../telemetry/metrics.ts';
import { type EventListener, eventBus } from './event-bus.ts';

const FACTS_FOR_MS = 5_000;
const DATABASE_DEADLINE_MS = 2_000;

export interface Observation {
  /** A listener for the processes that are observed. */
  readonly onEvent: EventListener;
  /** Listens, and says where. Throws `invalid_option`. */
  start(): Promise<void>;
  stop(): Promise<void>;
}

export interface ObserveOptions {
  readonly host: string;
  readonly port: number;
  readonly connectionString: string;
  /** How many processes there are to be ready. */
  readonly processes: number;
  /** Told of `process:observed`. */
  readonly onEvent: EventListener;
}

/**
 * `/metrics`, `/healthz` and `/readyz` of the worker and poller of one operating-system process. It has a
 * connection of its own, so that a scrape never takes one that a settle is waiting for.
 */
export function observe(options: ObserveOptions): Observation {
  const database = Database.connect(options.connectionString, { max: 1, applicationName: 'onetake metrics' });
  const metrics = createMetrics();
  const emit = eventBus([options.onEvent]);
  const readFacts = remembered(() => factsOf(database));
  let started = 0;
  let isStopping = false;
  const server = createHttpServer(options.host, options.port, {
    '/metrics': async () => {
      const facts = await withDeadline(readFacts(), DATABASE_DEADLINE_MS, undefined);
      return { status: 200, contentType: metrics.contentType, body: await metrics.text(facts) };
    },
    // The process lives and its event loop turns. A database that is away is no reason to restart it.
    '/healthz': async () => json(200, { status: 'ok' }),
    '/readyz': async () => {
      if (isStopping) return json(503, { status: 'stopping' });
      if (started < options.processes) return json(503, { status: 'starting' });
      const answered = database.executeSql('select 1').then(
        () => true,
        () => false,
      );
      const isUp = await withDeadline(answered, DATABASE_DEADLINE_MS, false);
      return isUp ? json(200, { status: 'ready' }) : json(503, { status: 'database_unavailable' });
    },
  });
  return {
    onEvent: (name, event) => {
      if (name === 'process:started') started++;
      if (name === 'process:stopping') isStopping = true;
      metrics.onEvent(name, event);
    },
    async start() {
      emit('process:observed', { host: options.host, port: await server.start() });
    },
    async stop() {
      await server.stop();
      await database.close(0);
    },
  };
}

async function factsOf(database: Database): Promise<FleetFacts> {
  const counts = await countLiveRequests(database);
  const attention = await countAttention(database);
  const breakers = await listBreakerStatus(database);
  const accounts = await listAccounts(database);
  return {
    requests: counts,
    oldest: counts.flatMap(({ state, oldestAgeSeconds }) =>
      oldestAgeSeconds === null ? [] : [{ state, ageSeconds: oldestAgeSeconds }],
    ),
    attention,
    breakers,
    accounts: accounts.map((account) => ({ ...account, paused: account.pausedUntil !== null })),
  };
}

/** One read at a time, good for some seconds: many scrapers ask no more of the database than one. */
function remembered<Value>(read: () => Promise<Value>): () => Promise<Value | undefined> {
  let reading: Promise<Value | undefined> | undefined;
  let until = 0;
  return () => {
    if (reading !== undefined && performance.now() < until) return reading;
    until = Number.POSITIVE_INFINITY;
    const mine = read().then(
      (value) => {
        until = performance.now() + FACTS_FOR_MS;
        return value;
      },
      () => {
        until = 0;
        return undefined;
      },
    );
    reading = mine;
    return mine;
  };
}

function json(status: number, body: object): Answer {
  return { status, contentType: 'application/json', body: `${JSON.stringify(body)}\n` };
}
