import { setTimeout as delay } from 'node:timers/promises';
import type { Operator } from './operator.ts';
import { CALM } from './provider/faults.ts';
import { type Deed, describeDeed, type Incident, type Statement } from './schedule.ts';
import { DEADLINES, LEASE_MS } from './settings.ts';
import type { CutOrder, TcpProxy } from './tcp-proxy.ts';
import type { Timeline } from './timeline.ts';
import type { ChaosWorld, ProcessName } from './world.ts';

/** A drain lasts as long as the longest POST and its settle; on a busy machine, and without a database, longer. */
const DRAIN_LIMIT_MS = DEADLINES.submissionMs + LEASE_MS + 30_000;

/** As it is on the wire, alone: `synchronous_commit` is another. */
const COMMIT = 'commit\0';
/** A transaction's COMMIT is known by the statement before it; the common settle is one statement alone. */
const STATEMENTS: Readonly<Record<Statement, Omit<CutOrder, 'when'>>> = {
  commit: { text: COMMIT },
  intent: { text: 'insert into onetake.submission_attempts', next: COMMIT },
  outcome: { text: 'update onetake.submission_attempts a', next: COMMIT },
  settle: { text: 'with terms as materialized' },
  job: { text: 'onetake_queue.' },
};

/** Does what the plan says, each thing at its time, and counts it. */
export class Incidents {
  readonly counts = new Map<string, number>();
  readonly #world: ChaosWorld;
  readonly #operator: Operator;
  readonly #timeline: Timeline;
  readonly #onFault: (what: string) => void;
  readonly #running = new Set<Promise<void>>();
  readonly #ending = new AbortController();

  constructor(world: ChaosWorld, operator: Operator, timeline: Timeline, onFault: (what: string) => void) {
    this.#world = world;
    this.#operator = operator;
    this.#timeline = timeline;
    this.#onFault = onFault;
  }

  /** Resolves when the last has begun, or when the run ends early. */
  async play(incidents: readonly Incident[], startedAt: number): Promise<void> {
    for (const incident of incidents) {
      if (!(await this.#pause(startedAt + incident.atMs - Date.now()))) return;
      this.#timeline.add('incident', `#${incident.number} ${describeDeed(incident.deed)}`);
      this.#count(incident.deed.kind);
      const done = this.#do(incident.deed)
        .catch((error: unknown) => this.#onFault(`incident #${incident.number} failed: ${String(error)}`))
        .finally(() => this.#running.delete(done));
      this.#running.add(done);
    }
  }

  /** Ends every incident that still lasts and puts everything back to normal. */
  async heal(): Promise<void> {
    this.#ending.abort();
    await Promise.all(this.#running);
    for (const proxy of [this.#world.providerProxy, ...this.#world.databaseProxies.values()]) proxy.pass();
    for (const child of this.#world.processes.values()) child.resume();
    this.#world.order({ type: 'heal' });
    this.#timeline.add('phase', 'everything is healed');
  }

  /** False when the run ends first. */
  async #pause(ms: number): Promise<boolean> {
    if (ms <= 0) return !this.#ending.signal.aborted;
    await delay(ms, undefined, { signal: this.#ending.signal }).catch(() => undefined);
    return !this.#ending.signal.aborted;
  }

  #count(what: string): void {
    this.counts.set(what, (this.counts.get(what) ?? 0) + 1);
  }

  async #do(deed: Deed): Promise<void> {
    const { postgres, providerProxy, order } = this.#world;
    switch (deed.kind) {
      case 'sigkill': {
        const child = this.#process(deed.target);
        await child.kill();
        await this.#pause(deed.downMs);
        child.start();
        break;
      }
      case 'sigstop': {
        const child = this.#process(deed.target);
        child.pause();
        await this.#pause(deed.forMs);
        child.resume();
        break;
      }
      case 'sigterm':
        return this.#terminate(deed);
      case 'postgres':
        await postgres.restart(deed.how, deed.downMs);
        this.#timeline.add('fact', 'PostgreSQL is back');
        break;
      case 'database_cut':
        this.#database(deed.target).cut(deed.manner);
        break;
      case 'database_refuse':
        return this.#for(deed.forMs, this.#database(deed.target), (proxy) => proxy.refuse());
      case 'database_stall':
        return this.#for(deed.forMs, this.#database(deed.target), (proxy) => proxy.stall(), deed.then);
      case 'database_cut_at': {
        const cut: CutOrder = { ...STATEMENTS[deed.statement], when: deed.when };
        this.#database(deed.target).cutAt(cut);
        break;
      }
      case 'provider_cut':
        providerProxy.cut(deed.manner);
        break;
      case 'provider_refuse':
        return this.#for(deed.forMs, providerProxy, (proxy) => proxy.refuse());
      case 'provider_stall':
        return this.#for(deed.forMs, providerProxy, (proxy) => proxy.stall(), deed.then);
      case 'weather':
        order({ type: 'weather', weather: deed.weather });
        await this.#pause(deed.forMs);
        order({ type: 'weather', weather: CALM });
        break;
      case 'override':
        await this.#operator.force(deed.breaker, deed.mode, deed.expires ? deed.forMs : null);
        await this.#pause(deed.forMs);
        return deed.expires ? undefined : this.#operator.release(deed.breaker);
      case 'release_holds':
        return this.#operator.releaseHolds();
    }
  }

  async #for(
    ms: number,
    proxy: TcpProxy,
    begin: (proxy: TcpProxy) => void,
    stalled: 'deliver' | 'lose' = 'deliver',
  ): Promise<void> {
    begin(proxy);
    await this.#pause(ms);
    proxy.pass(stalled);
  }

  /** A rolling deploy: it drains and ends with 0, or is killed when the patience of the platform is over. */
  async #terminate(deed: Extract<Deed, { kind: 'sigterm' }>): Promise<void> {
    const child = this.#process(deed.target);
    const wasUp = child.isUp;
    const how = await child.terminate(deed.times, deed.killAfterMs ?? DRAIN_LIMIT_MS);
    const wasKilled = child.isKilled;
    if (how === undefined) await child.kill();
    if (how === undefined && !wasKilled && deed.killAfterMs === null) {
      this.#onFault(`${deed.target} did not end within ${DRAIN_LIMIT_MS} ms of SIGTERM`);
    }
    // One that was still starting may be ended by the signal itself, or by a database that was away.
    const mayBe = wasUp ? ['exit code 0'] : ['exit code 0', 'exit code 1', 'SIGTERM'];
    if (how !== undefined && !mayBe.includes(how)) {
      this.#onFault(`${deed.target} ended with ${how} after SIGTERM`);
    }
    this.#timeline.add('fact', `${deed.target} after SIGTERM: ${how ?? 'killed'}`);
    child.start();
  }

  #process(name: string) {
    const child = this.#world.processes.get(name as ProcessName);
    if (child === undefined) throw new Error(`no process ${name}`);
    return child;
  }

  #database(name: string): TcpProxy {
    const proxy = this.#world.databaseProxies.get(name);
    if (proxy === undefined) throw new Error(`no way to the database of ${name}`);
    return proxy;
  }
}
