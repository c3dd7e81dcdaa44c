export { OnetakeError, type OnetakeErrorCode } from './core/errors.ts';
export type { OnetakeEventName, OnetakeEvents } from './core/events.ts';
export { LIMITS_AS_OF, type LimitSetting } from './core/field-limits.ts';
export { type FieldProblem, type FieldProblemCode, FieldsError } from './core/field-problems.ts';
export { isTerminal, type RequestState } from './core/generation-request.ts';
export type { InstallationTrouble } from './core/installation.ts';
export {
  type EffectSegment,
  type LocalFile,
  OPERATION_NAMES,
  type OperationFields,
  type OperationName,
  type Segment,
  type VideoSource,
} from './core/operations.ts';
export { type ClassifiedOutcome, classifyGenerationOutcome } from './core/outcome.ts';
export type { EnqueueResult } from './lifecycle/enqueue.ts';
export type { EnqueueManyResult, RefusedItem } from './lifecycle/enqueue-many.ts';
export type { InstallationIdentity, InstallationStatus } from './postgres/installation.ts';
export type { Decision } from './postgres/operator-actions.ts';
export type { CallerTransaction } from './queue/caller-transaction.ts';
export {
  type Client,
  type ClientOptions,
  createClient,
  type RequestDetails,
  type ResolveInput,
  type SettledHandler,
  type SettledOptions,
  type SettledSubscription,
  type WaitOptions,
} from './runtime/client.ts';
export type { OverrideBreakerInput, RecoverInput } from './runtime/client-options.ts';
export { defineConfig, type OnetakeConfig } from './runtime/define-config.ts';
export type { EnqueueInput } from './runtime/enqueue-options.ts';
export type { Recovery } from './runtime/recover.ts';
