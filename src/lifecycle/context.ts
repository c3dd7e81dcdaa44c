import type { Clock } from '../core/clock.ts';
import type { Emit } from '../core/events.ts';
import type { OperationSettings } from '../core/operation-settings.ts';
import type { Provider } from '../core/provider.ts';
import type { Database } from '../postgres/database.ts';
import type { JobQueue } from '../queue/boss.ts';
import type { ResultStorage } from '../storage/directory-storage.ts';
import type { Spool } from '../storage/spool.ts';
import type { InstallationGuard } from './guard-installation.ts';

/** What rescue needs: any process may run it. */
export interface RescueContext {
  readonly database: Database;
  readonly queue: JobQueue;
  readonly emit: Emit;
  readonly settingsOf: (operation: string) => OperationSettings;
}

/** What dispatch, admit, submit and settle need, from the process that they run in. */
export interface SubmissionContext extends RescueContext {
  readonly clock: Clock;
  /** Whether the database is the one that was confirmed. */
  readonly guard: InstallationGuard;
  /** Names this process in attempts and logs. */
  readonly worker: string;
  readonly providerNamed: (name: string) => Provider | undefined;
  /** The key of an account, at the moment it is needed. Throws `missing_api_key`. */
  readonly apiKeyOf: (account: string) => string | Promise<string>;
  /** Where streams go as they come; null: this process can't take any. */
  readonly storage: ResultStorage | null;
  /** Where outcomes wait that the database can't take. */
  readonly spool: Spool;
  /** From acceptance to the first read of the task. */
  readonly firstPollMs: number;
}
