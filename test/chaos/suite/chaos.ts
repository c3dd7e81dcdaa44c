import { setTimeout as delay } from 'node:timers/promises';
import { App } from './app.ts';
import type { ChaosOptions } from './arguments.ts';
import { checkBreakers } from './breaker-checks.ts';
import { caseText } from './case-text.ts';
import {
  check,
  checkConcurrency,
  checkWindows,
  checkWords,
  type Facts,
  markerOf,
  unfinished,
  type Violation,
} from './checks.ts';
import { Incidents } from './incidents.ts';
import { memoryUse } from './memory.ts';
import { Operator } from './operator.ts';
import { ProgressTable } from './progress.ts';
import { type ChaosReport, countBy, moneyOf } from './report.ts';
import { Sampler } from './sampler.ts';
import { planIncidents, type Targets } from './schedule.ts';
import { CANARY } from './settings.ts';
import { Observer, type Snapshot, takeSnapshot } from './snapshot.ts';
import { Timeline } from './timeline.ts';
import { type ChaosWorld, openWorld, PROCESS_NAMES, STEADY, through } from './world.ts';

export const TARGETS: Targets = {
  mortal: PROCESS_NAMES.filter((name) => !STEADY.some((steady) => steady === name)),
  steady: STEADY,
  clients: [...PROCESS_NAMES, 'app', 'operator'],
};

const CHECK_EVERY_MS = 5_000;
/** After the last fault: leases, quarantines, a minute's pause of a 429, and the queue behind it. */
const FINISH_LIMIT_MS = 240_000;
const SHOWN_BEFORE_VIOLATION_MS = 25_000;

export interface RunSurroundings {
  readonly file: string;
  readonly progress: (line: string) => void;
  readonly signal: AbortSignal;
}

export async function runChaos(options: ChaosOptions, surroundings: RunSurroundings): Promise<ChaosReport> {
  const run = new ChaosRun(options, surroundings);
  return run.perform();
}

class ChaosRun {
  readonly #options: ChaosOptions;
  readonly #surroundings: RunSurroundings;
  readonly #timeline: Timeline;
  readonly #violations: (Violation & { readonly atMs: number })[] = [];
  readonly #ending = new AbortController();
  #snapshot: Snapshot | undefined;
  /** Everything came to its end, and only the books are left to close. */
  #isFinished = false;
  readonly #progress = new ProgressTable();
  #startedAt = Date.now();

  constructor(options: ChaosOptions, surroundings: RunSurroundings) {
    this.#options = options;
    this.#surroundings = surroundings;
    this.#timeline = new Timeline(surroundings.file);
    surroundings.signal.addEventListener('abort', () => this.#ending.abort());
  }

  async perform(): Promise<ChaosReport> {
    const { seed, minutes, ordersPerMinute } = this.#options;
    const { progress } = this.#surroundings;
    progress(`seed ${seed}, ${minutes} min; the same again: npm run chaos -- ${this.#command()}`);
    const world = await openWorld({ seed, onFault: this.#onFault, note: progress });
    const { connectionString } = world.postgres;
    const observer = new Observer(connectionString);
    await observer.read((client) =>
      client.query('create schema the_app; create table the_app.orders (marker int)'),
    );
    const operator = new Operator({
      seed,
      connectionString: through(world.operatorProxy, connectionString),
      ledger: world.ledger,
      timeline: this.#timeline,
      onFault: this.#onFault,
    });
    const app = new App({
      seed,
      connectionString: through(world.appProxy, connectionString),
      everyMs: 60_000 / ordersPerMinute,
      uploads: world.uploads,
      queued: (account) => this.#waiting(account),
      onFault: this.#onFault,
    });
    const sampler = new Sampler(world, observer, this.#onFault);
    const incidents = new Incidents(world, operator, this.#timeline, this.#onFault);
    const lookAt = () => this.#check(observer, world, app);
    this.#startedAt = Date.now();
    try {
      const looking = this.#watch(lookAt, world, app, incidents);
      const running = [sampler.run(), operator.run(), app.run()];
      const planned = planIncidents(seed, minutes * 60_000, TARGETS);
      await Promise.race([
        incidents.play(planned, this.#startedAt).then(() => this.#rest(minutes * 60_000)),
        this.#ended(),
      ]);
      this.#timeline.add('phase', 'no more faults and no more orders');
      if (this.#ending.signal.aborted) await world.kill();
      await incidents.heal();
      await app.stop();
      operator.isClearing = true;
      await this.#finish(lookAt, () => world.spooled().length);
      await operator.stop();
      sampler.stop();
      this.#isFinished = !this.#ending.signal.aborted;
      this.#ending.abort();
      await Promise.all([looking, ...running]);
      if (this.#isFinished) this.#checkMemory(sampler);
      return this.#report(world, incidents, operator, sampler);
    } finally {
      this.#ending.abort();
      sampler.stop();
      await observer.close();
      await world.kill();
      await Promise.allSettled([incidents.heal(), operator.stop(), app.stop()]);
      await world.stop();
    }
  }

  /** Ends the run, unless it is asked to go on. */
  readonly #onFault = (what: string): void => this.#violate({ rule: 'process', what });

  #violate(violation: Violation): void {
    // What ends is killed in the middle of things.
    if (this.#ending.signal.aborted && !this.#isFinished) return;
    const isKnown = this.#violations.some(
      ({ rule, what }) => rule === violation.rule && what === violation.what,
    );
    if (isKnown) return;
    this.#violations.push({ ...violation, atMs: Date.now() - this.#startedAt });
    this.#timeline.add('violation', `${violation.rule}: ${violation.what}`);
    if (this.#violations.length === 1) {
      const { progress } = this.#surroundings;
      progress(`\nVIOLATION (${violation.rule}): ${violation.what}\nwhat came before it:`);
      for (const line of this.#timeline.tail(SHOWN_BEFORE_VIOLATION_MS)) progress(line.slice(0, 120));
      progress(`the same again: npm run chaos -- ${this.#command()}\nall of it: ${this.#timeline.file}\n`);
    }
    if (!this.#options.keepGoing) this.#ending.abort();
  }

  #command(): string {
    const { seed, minutes, ordersPerMinute } = this.#options;
    return `--minutes ${minutes} --seed ${seed} --orders ${ordersPerMinute}`;
  }

  #waiting(account: string): number {
    return (
      this.#snapshot?.requests.filter((row) => row.account === account && row.state === 'queued').length ?? 0
    );
  }

  #ended(): Promise<void> {
    return new Promise((resolve) => {
      if (this.#ending.signal.aborted) resolve();
      this.#ending.signal.addEventListener('abort', () => resolve());
    });
  }

  async #rest(untilMs: number): Promise<void> {
    const leftMs = this.#startedAt + untilMs - Date.now();
    await delay(Math.max(0, leftMs), undefined, { signal: this.#ending.signal }).catch(() => undefined);
  }

  async #watch(
    lookAt: () => Promise<Facts | undefined>,
    world: ChaosWorld,
    app: App,
    incidents: Incidents,
  ): Promise<void> {
    while (!this.#ending.signal.aborted) {
      const begun = Date.now();
      await lookAt();
      this.#surroundings.progress(this.#progressLine(world, app, incidents));
      const pauseMs = Math.max(CHECK_EVERY_MS, 5 * (Date.now() - begun));
      await delay(pauseMs, undefined, { signal: this.#ending.signal }).catch(() => undefined);
    }
  }

  /** Books and journal first, then the database: see `checks.ts`. */
  async #check(observer: Observer, world: ChaosWorld, app: App): Promise<Facts | undefined> {
    const orders = new Map(
      [...app.orders].map(([marker, { outcome, ids }]) => [marker, { outcome, ids: new Set(ids) }]),
    );
    const ledger = world.ledger.copy();
    const snapshot = await observer.read(takeSnapshot);
    if (snapshot === undefined) return undefined;
    const before = this.#snapshot;
    this.#snapshot = snapshot;
    const facts: Facts = { orders, ledger, snapshot };
    const found: Violation[] = [
      ...check(facts),
      ...checkBreakers(snapshot),
      ...checkWindows(ledger, Date.now() - 200_000),
      ...checkConcurrency(facts),
      ...(before === undefined ? [] : checkWords({ ledger, snapshot: before })),
      ...world
        .spooled()
        .flatMap((text) =>
          text.includes(CANARY) ? [{ rule: 'no leak', what: 'a canary in the spool' }] : [],
        ),
    ];
    for (const violation of found) {
      this.#violate(violation);
      if (violation.marker !== undefined) this.#timeline.attach(caseText(violation.marker, facts));
    }
    return facts;
  }

  /** Bounded: everything that was ordered comes to an end, or is named. */
  async #finish(lookAt: () => Promise<Facts | undefined>, spooled: () => number): Promise<void> {
    const limit = Date.now() + FINISH_LIMIT_MS;
    let left: ReturnType<typeof unfinished> = [];
    while (!this.#ending.signal.aborted) {
      const facts = await lookAt();
      if (facts !== undefined) {
        left = unfinished(facts);
        if (left.length === 0 && spooled() === 0) return void (await lookAt());
      }
      if (Date.now() > limit) break;
      await delay(1_000, undefined, { signal: this.#ending.signal }).catch(() => undefined);
    }
    if (this.#ending.signal.aborted) return;
    if (spooled() > 0)
      this.#violate({ rule: 'nothing stuck', what: `${spooled()} outcomes are still in the spool` });
    for (const row of left) {
      this.#violate({
        rule: 'nothing stuck',
        what: `${row.id} is still ${row.state} (${row.stateReason})`,
        marker: markerOf(row),
      });
    }
  }

  #checkMemory(sampler: Sampler): void {
    for (const name of STEADY) {
      const use = memoryUse(name, sampler.memory.get(name) ?? []);
      if (use === undefined || use.isFlat) continue;
      this.#violate({ rule: 'memory', what: `${name} grew from ${use.plateauMb} to ${use.lastMb} MB` });
    }
  }

  #progressLine(world: ChaosWorld, app: App, incidents: Incidents): string {
    const count = (kind: string) => incidents.counts.get(kind) ?? 0;
    const posts = [...world.ledger.posts.values()];
    const columns: Readonly<Record<string, number>> = {
      seconds: Math.round((Date.now() - this.#startedAt) / 1_000),
      requests: app.orders.size,
      POSTs: posts.length,
      kills: count('sigkill') + count('sigterm'),
      restarts: count('postgres'),
      faults: posts.filter(({ behaviour }) => !behaviour.startsWith('accept')).length,
      ambiguous: this.#snapshot?.requests.filter(({ state }) => state === 'ambiguous').length ?? 0,
      violations: this.#violations.length,
    };
    return this.#progress.line(columns);
  }

  #report(world: ChaosWorld, incidents: Incidents, operator: Operator, sampler: Sampler): ChaosReport {
    const snapshot = this.#snapshot;
    if (snapshot === undefined) throw new Error('the database was never read');
    const { ledger } = world;
    const counts = (map: ReadonlyMap<string, number>) => Object.fromEntries(map);
    const { seed, minutes, ordersPerMinute } = this.#options;
    return {
      seed,
      minutes,
      ordersPerMinute,
      seconds: (Date.now() - this.#startedAt) / 1_000,
      interrupted: this.#surroundings.signal.aborted,
      requests: snapshot.requests.length,
      posts: ledger.posts.size,
      intentsAsked: ledger.intentsAsked,
      ...moneyOf(ledger, snapshot),
      states: countBy(snapshot.requests, ({ state }) => state),
      lost: this.#violations.filter(({ rule }) => rule === 'nothing lost').length,
      ambiguous: countBy(snapshot.attempts, ({ certainty, reason }) =>
        certainty === 'unknown' ? reason : null,
      ),
      incidents: counts(incidents.counts),
      faults: counts(ledger.counts),
      operator: counts(operator.counts),
      breakerTransitions: snapshot.transitions.length,
      lateAnswers: snapshot.evidence.length,
      longestIdleMs: sampler.longestIdleMs,
      longestDisturbedIdleMs: sampler.longestDisturbedIdleMs,
      mostSockets: sampler.mostSockets,
      memory: STEADY.flatMap((name) => memoryUse(name, sampler.memory.get(name) ?? []) ?? []),
      violations: this.#violations,
      timeline: this.#timeline.file,
    };
  }
}
