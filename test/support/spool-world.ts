import { mkdir, readdir, readFile } from 'node:fs/promises';
import { onTestFinished } from 'vitest';
import type { OnetakeEvents } from '../../src/core/events.ts';
import type { SubmissionOutcome } from '../../src/core/provider.ts';
import { type AdmittedBatch, admit } from '../../src/lifecycle/admit.ts';
import { InstallationGuard } from '../../src/lifecycle/guard-installation.ts';
import { createReplay } from '../../src/lifecycle/replay.ts';
import { createSpool, type Spool } from '../../src/storage/spool.ts';
import { type LifecycleContext, laneOf, lifecycleContext } from './lifecycle-context.ts';
import type { RawProvider } from './raw-provider.ts';
import { openWorld, type World, type WorldOptions } from './world.ts';

export type Attempt = AdmittedBatch['attempts'][number];

/** A world in which the test itself is the worker, and leaves outcomes in its spool. */
export interface SpoolWorld extends World {
  readonly raw: RawProvider;
  readonly ctx: LifecycleContext;
  readonly directory: string;
  /** A worker that somebody else is, on the same directory; `connectionString` may lead through a proxy. */
  anotherWorker(connectionString?: string): Promise<LifecycleContext>;
  /** The spool as a process that has just started sees it. */
  freshSpool(): Spool;
  /** The next request that waits. */
  admitted(): Promise<Attempt>;
  /** Enqueued and admitted. */
  submitting(requestKey: string): Promise<Attempt>;
  /** What the worker of the attempt left on disk when it died. */
  leaves(attempt: Attempt, outcome: SubmissionOutcome): Promise<void>;
  /** One round of replay by a process that has just started. */
  replay(): Promise<number>;
  /** Names of the files in the directory. */
  files(): Promise<string[]>;
  content(name: string): Promise<string>;
  /** As a database is that lost transaction A of the attempt: its request is queued, with a job, as before. */
  lose(attempt: Attempt): Promise<void>;
  /** An operator has looked at a database that was doubted, and lets it go on. */
  confirmed(): Promise<void>;
  /** The events of that name so far. */
  seen<Name extends keyof OnetakeEvents>(name: Name): OnetakeEvents[Name][];
}

export async function openSpoolWorld(options: WorldOptions = {}): Promise<SpoolWorld> {
  const world = await openWorld({
    provider: 'raw',
    ...options,
    operation: { rearmQuarantineMs: 0, ...options.operation },
  });
  const directory = world.config.worker?.spoolDirectory as string;
  await mkdir(directory, { recursive: true });
  const emit = (name: string, event: object) => void (world.events as object[]).push({ name, event });
  const anotherWorker = async (connectionString = world.database.connectionString) => {
    const made = await lifecycleContext({ connectionString, config: world.config }, { emit });
    onTestFinished(() => made.stop());
    return made;
  };
  const freshSpool = () => createSpool({ directory, onTrouble: () => undefined });
  const ctx = await anotherWorker();
  const admitted = async (): Promise<Attempt> => {
    // Of a process that remembers nothing: after a loss, the one that does submits no more.
    const guard = new InstallationGuard({ database: ctx.database, emit, clock: ctx.clock, worker: 'test' });
    const batch = await admit({ ...ctx, guard }, await laneOf(ctx), { wanted: 1 });
    if (!('attempts' in batch)) throw new Error(`not admitted: ${batch.blockedBy}`);
    return batch.attempts[0] as Attempt;
  };
  return Object.assign(world, {
    ctx,
    directory,
    anotherWorker,
    freshSpool,
    admitted,
    async submitting(requestKey: string) {
      const id = await world.song(requestKey);
      const attempt = await admitted();
      if (attempt.requestId !== id) throw new Error('another request was admitted');
      return attempt;
    },
    async leaves(intent: Attempt, outcome: SubmissionOutcome) {
      if (!(await freshSpool().keep({ intent, outcome }))) throw new Error('not kept');
    },
    replay: () => createReplay({ ...ctx, spool: freshSpool() }, () => true)(),
    files: () => readdir(directory),
    content: (name: string) => readFile(`${directory}/${name}`, 'utf8'),
    async lose(attempt: Attempt) {
      await world.database.query(
        `do $$
begin
  set local session_replication_role = replica;
  delete from onetake.submission_attempts where id = '${attempt.attemptId}';
  update onetake.generation_requests
  set state = 'queued', submissions = submissions - 1
  where id = '${attempt.requestId}';
end
$$`,
      );
      const { requestId: id, account, operation } = attempt;
      const job = { id, account, operation, jobPriority: -1 };
      await ctx.database.transaction((tx) => ctx.queue.send(tx, job, null));
    },
    async confirmed() {
      await world.database.query(`select onetake.confirm_installation('mia', 'looked at')`);
    },
    seen: <Name extends keyof OnetakeEvents>(name: Name) =>
      world.events.filter((one) => one.name === name).map(({ event }) => event as OnetakeEvents[Name]),
  });
}
