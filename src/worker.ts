export { OnetakeError, type OnetakeErrorCode } from './core/errors.ts';
export type { OnetakeEventName, OnetakeEvents } from './core/events.ts';
export { type Outcome, outcomeOfResponse, outcomeOfTransportFailure } from './core/outcome.ts';
export type {
  Deadlines,
  KeyCheck,
  Provider,
  ProviderSelfTest,
  ResultFile,
  Submission,
  SubmissionOutcome,
  TaskRead,
  TaskReading,
  WireEvidence,
  WireOracleHealth,
  WireProof,
} from './core/provider.ts';
export { type MigrateOptions, type MigrateResult, migrate } from './runtime/migrate.ts';
export { createPoller, type Poller } from './runtime/poller-process.ts';
export type { ProcessOptions } from './runtime/process-options.ts';
export { createWorker, type Worker } from './runtime/worker-process.ts';
