import type { HoldKind } from './admission.ts';
import type { BreakerOverride, CircuitBreakerState, TransitionCause } from './circuit-breaker.ts';
import type { Attention, RequestState } from './generation-request.ts';
import type { InstallationTrouble } from './installation.ts';
import type { Certainty, Health, OutcomeReason, Phase } from './outcome.ts';
import type { WireOracleHealth } from './provider.ts';

/** One state change of one breaker, as its transition row tells it. */
export interface BreakerTransition {
  readonly breakerName: string;
  /** `override`: what an operator laid over the state; its states are those of the override, or `none`. */
  readonly layer: 'state' | 'override';
  /** Names the transition within its breaker and layer, without gaps. */
  readonly number: number;
  readonly previousState: CircuitBreakerState | BreakerOverride | 'none';
  readonly nextState: CircuitBreakerState | BreakerOverride | 'none';
  readonly cause: TransitionCause;
  readonly outcomeKind: Health | null;
  readonly httpStatus: number | null;
  readonly openedAt: Date | null;
  readonly retryAt: Date | null;
  readonly requestId: string | null;
  readonly providerTaskId: string | null;
  readonly generation: number;
  readonly actor: string | null;
  /** It only recorded what it would have done. */
  readonly shadow: boolean;
}

/**
 * Every event and its fields. Emitted after the commit that made it true; refusals emit nothing. Fields
 * are ids, codes and numbers, so that a subscriber can print all of them.
 */
export interface OnetakeEvents {
  'process:started': { role: 'worker' | 'poller'; worker: string };
  'process:stopping': { role: 'worker' | 'poller'; worker: string; inFlight: number };
  'process:stopped': { role: 'worker' | 'poller'; worker: string };
  /** `/metrics`, `/healthz` and `/readyz` are served there. */
  'process:observed': { host: string; port: number };
  /**
   * A loop failed and will go on; `errorCode` is a SQLSTATE, a socket code or one of ours. The same trouble is
   * told once a minute at most, with how many `times` it came since it was last told.
   */
  'process:trouble': { role: 'worker' | 'poller'; loop: string; errorCode: string; times?: number };
  /** A loop whose trouble was told is through with it. */
  'process:recovered': { role: 'worker' | 'poller'; loop: string };
  /** LISTEN doesn't work on this connection, a pooler's: wake-ups come from polling each second. Said once. */
  'process:polling': { role: 'worker' | 'poller' };
  /** The last attempts of this worker all failed unsent: it can't reach the provider, and stops dispatching. */
  'worker:sick': { worker: string; provider: string };
  'worker:recovered': { worker: string; provider: string };
  /** This process can't prove from the wire what was not sent; only connection errors count as unsent. Said once. */
  'wire:unproven': {
    worker: string;
    provider: string;
    wireOracle: WireOracleHealth;
    errorCode: string | null;
  };
  /** This process's file and the rows that everyone reads disagree; the rows rule. Said once. */
  'configuration:differs': { settings: string };
  /** This worker submits nothing from the database it is connected to; said once per change. */
  'installation:unrecognised': { worker: string; trouble: InstallationTrouble };
  'installation:recognised': { worker: string };
  'submission:admitted': {
    requestId: string;
    attemptId: string;
    attempt: number;
    account: string;
    operation: string;
    isProbe: boolean;
  };
  'submission:settled': {
    requestId: string;
    attemptId: string;
    from: RequestState;
    to: RequestState;
    reason: OutcomeReason;
    health: Health;
    certainty: Certainty;
    phase: Phase;
    httpStatus: number | null;
    errorCode: string | null;
    providerTaskId: string | null;
    attention: Attention | null;
  };
  /** The contract was broken, or an answer came that nobody has reviewed. */
  'submission:alert': {
    requestId: string;
    attemptId: string;
    reason: OutcomeReason;
    httpStatus: number | null;
  };
  /** Fatal: something below us tried to send a paid POST a second time. It was stopped before its first byte. */
  'submission:repeated': { requestId: string; attemptId: string };
  /** An outcome can't be committed: at the first failure, and when this process leaves it to replays. */
  'submission:unsettled': {
    requestId: string;
    attemptId: string;
    providerTaskId: string | null;
    certainty: Certainty;
    reason: OutcomeReason;
    httpStatus: number | null;
    errorCode: string;
  };
  /** `worker.spoolDirectory` can't be used; said once, until it has worked again. */
  'spool:trouble': { settings: string; action: 'write' | 'list' | 'read'; errorCode: string };
  /** A spooled outcome that no replay can record, which stays on disk. Said once in a process. */
  'spool:unreplayed': {
    reason: 'damaged' | 'newer' | 'unknown_request';
    attemptId: string;
    requestId: string | null;
    providerTaskId: string | null;
  };
  'breaker:transition': BreakerTransition;
  'account:held': { account: string; operation: string | null; kind: HoldKind; code: string | null };
  /** A free check of a refused key passed, so the hold is over. An operator's release is a row, not an event. */
  'account:released': { account: string; operation: string | null; reason: 'key_check' };
  'account:paused': { account: string; kind: 'rate' | 'concurrency'; until: Date };
  /** Its tasks can't be read: one read at a time until one tells something. Submissions don't hear of it. */
  'reads:paused': { account: string; reason: string };
  'reads:resumed': { account: string };
  'task:unreadable': {
    requestId: string;
    reason: string;
    httpStatus: number | null;
    errorCode: string | null;
  };
  /** `failureCode`: which failure, as the provider names it; null of a success, and where it doesn't say. */
  'task:finished': {
    requestId: string;
    to: 'succeeded' | 'failed';
    failureCode: string | null;
    files: number;
  };
  /** Of an answer that is a stream, which has no task; `code` is `complete`, or why it was not. */
  'stream:ended': {
    requestId: string;
    attemptId: string;
    to: 'succeeded' | 'failed';
    failureReason: 'provider' | 'stream_interrupted' | null;
    code: string;
    health: Health;
    files: number;
    bytes: number;
  };
  'task:refunded': { requestId: string; providerTaskId: string };
  /** About every five seconds of a download. */
  'asset:progress': { requestId: string; index: number; bytes: number; totalBytes: number | null };
  'asset:stored': { requestId: string; index: number; bytes: number };
  'asset:failed': { requestId: string; index: number; errorCode: string };
  /** It was made, and its files can't be had any more. */
  'asset:lost': { requestId: string; errorCode: string };
  'rescue:done': { rescued: string; count: number };
  'request:expired': { requestId: string };
}

export type OnetakeEventName = keyof OnetakeEvents;

/** One event with its name, for those that are kept until their commit. */
export type OnetakeEvent = {
  [Name in OnetakeEventName]: { readonly name: Name; readonly event: OnetakeEvents[Name] };
}[OnetakeEventName];

/** Where floors below the process report to. Must not throw. */
export type Emit = <Name extends OnetakeEventName>(name: Name, event: OnetakeEvents[Name]) => void;
