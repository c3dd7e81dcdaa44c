import { setTimeout as delay } from 'node:timers/promises';
import type { ManagedProcess } from './processes.ts';
import { IDLE_SESSION_LIMIT_MS } from './settings.ts';
import type { Observer } from './snapshot.ts';
import type { ChaosWorld } from './world.ts';

const EVERY_MS = 250;
const IDLE_LIMIT_MS = 1_000;
/** For the suite's own rounds between two looks at the server. */
const IDLE_TOLERANCE_MS = 2_500;
/** Pool, listener and calls under way, each with a socket that may just be closing. */
const MAX_SOCKETS = { worker: 45, poller: 80 } as const;
const LAG_EVERY_MS = 100;

export interface IdleSession {
  readonly client_port: number;
  readonly application_name: string;
  readonly idle_ms: number;
}

export interface Disturbance {
  /** Its process is stopped, or its network holds bytes back, or one of both has just ended. */
  readonly isDisturbed: boolean;
  /** How late the suite's own timers have been lately: whoever shares this machine is as late. */
  readonly lagMs: number;
}

/** What a session idle in a transaction says against us, if anything. */
export function idleFault(
  session: IdleSession,
  name: string,
  { isDisturbed, lagMs }: Disturbance,
): string | undefined {
  const limitMs = isDisturbed ? IDLE_SESSION_LIMIT_MS + IDLE_TOLERANCE_MS : IDLE_LIMIT_MS + 10 * lagMs;
  if (session.idle_ms <= limitMs) return undefined;
  return `${name}: a session idle in a transaction for ${Math.round(session.idle_ms)} ms`;
}

/** Looks at the server and at the processes many times a second, since what it looks for is soon over. */
export class Sampler {
  longestIdleMs = 0;
  longestDisturbedIdleMs = 0;
  mostSockets = 0;
  samples = 0;
  readonly memory = new Map<string, { readonly at: number; readonly rssMb: number }[]>();
  readonly #world: ChaosWorld;
  readonly #observer: Observer;
  readonly #onFault: (what: string) => void;
  readonly #ending = new AbortController();
  readonly #lags: { readonly at: number; readonly lagMs: number }[] = [];

  constructor(world: ChaosWorld, observer: Observer, onFault: (what: string) => void) {
    this.#world = world;
    this.#observer = observer;
    this.#onFault = onFault;
  }

  async run(): Promise<void> {
    let due = performance.now() + LAG_EVERY_MS;
    const lags = setInterval(() => {
      this.#lags.push({ at: Date.now(), lagMs: Math.max(0, performance.now() - due) });
      due = performance.now() + LAG_EVERY_MS;
      if (this.#lags.length > 100) this.#lags.shift();
    }, LAG_EVERY_MS);
    for (let n = 0; !this.#ending.signal.aborted; n++) {
      await this.#look();
      if (n % 8 === 0) this.#measure();
      await delay(EVERY_MS, undefined, { signal: this.#ending.signal }).catch(() => undefined);
    }
    clearInterval(lags);
  }

  stop(): void {
    this.#ending.abort();
  }

  lagMs(): number {
    return Math.max(0, ...this.#lags.map(({ lagMs }) => lagMs));
  }

  async #look(): Promise<void> {
    const facts = await this.#observer.read(async (client) => ({
      idle: (await client.query<IdleSession>(IDLE)).rows,
      probes: (await client.query<{ breaker_name: string; live: number }>(LIVE_PROBES)).rows,
    }));
    if (facts === undefined) return;
    this.samples++;
    for (const { breaker_name: name, live } of facts.probes)
      this.#onFault(`${live} live probes of ${name} at once`);
    for (const session of facts.idle) this.#judge(session);
  }

  #judge(session: IdleSession): void {
    const owner = [...this.#world.processes.values()].find((child) =>
      child.proxy.upstreamPorts().includes(session.client_port),
    );
    // The app, the operators, or a session whose client has gone this very moment.
    if (owner === undefined) return;
    const isDisturbed = wasDisturbed(owner, session.idle_ms);
    const fault = idleFault(session, owner.name, { isDisturbed, lagMs: this.lagMs() });
    if (isDisturbed) this.longestDisturbedIdleMs = Math.max(this.longestDisturbedIdleMs, session.idle_ms);
    else this.longestIdleMs = Math.max(this.longestIdleMs, session.idle_ms);
    if (fault !== undefined) this.#onFault(fault);
  }

  #measure(): void {
    for (const child of this.#world.processes.values()) {
      const usage = child.usage();
      if (usage === undefined) continue;
      this.mostSockets = Math.max(this.mostSockets, usage.sockets);
      if (usage.sockets > MAX_SOCKETS[child.role])
        this.#onFault(`${child.name} has ${usage.sockets} sockets open`);
      const samples = this.memory.get(child.name) ?? [];
      samples.push({ at: Date.now(), rssMb: usage.rssMb });
      this.memory.set(child.name, samples);
    }
  }
}

function wasDisturbed(child: ManagedProcess, idleMs: number): boolean {
  const since = Date.now() - idleMs - 1_000;
  return child.isStopped || child.stoppedUntil > since || child.proxy.disturbedUntil > since;
}

const IDLE = `select client_port, application_name,
  (extract(epoch from clock_timestamp() - state_change) * 1000)::float8 as idle_ms
from pg_stat_activity
where datname = current_database() and state like 'idle in transaction%' and pid <> pg_backend_pid()`;

const LIVE_PROBES = `select breaker_name, count(*)::int as live
from onetake.submission_attempts
where is_probe and settled_at is null and lease_expires_at > clock_timestamp()
group by breaker_name having count(*) > 1`;
