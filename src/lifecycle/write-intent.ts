import { type Admission as Decision, RATE_WINDOW_MS } from '../core/admission.ts';
import { type BreakerOverride, grantProbe } from '../core/circuit-breaker.ts';
import type { BreakerTransition } from '../core/events.ts';
import type { AttemptTerms } from '../core/spooled-outcome.ts';
import type { Account } from '../postgres/accounts.ts';
import { breakerName, type CircuitBreakerRow, writeTransition } from '../postgres/circuit-breakers.ts';
import type { Sql } from '../postgres/database.ts';
import type { Lane } from '../postgres/lanes.ts';
import { type AdmittedAttempt, admitRequests } from '../postgres/submission-attempts.ts';
import type { SubmissionContext } from './context.ts';

/** What transaction A wrote, for after its commit. */
export interface WrittenIntent {
  readonly attempts: readonly AdmittedAttempt[];
  readonly probeAttemptId: string | undefined;
  readonly transition: BreakerTransition | undefined;
}

export interface Intent {
  readonly lane: Lane;
  readonly account: Account;
  readonly row: CircuitBreakerRow;
  readonly override: BreakerOverride | null;
  readonly admission: Extract<Decision, { probe: unknown }>;
  /** Locked, queued and due. */
  readonly eligible: readonly string[];
  readonly attemptIds: readonly string[];
  readonly now: Date;
}

/** Attempts, requests and, for a probe, the breaker: one transaction, before the network. */
export async function writeIntent(ctx: SubmissionContext, tx: Sql, intent: Intent): Promise<WrittenIntent> {
  const { lane, row, admission, eligible, attemptIds, now } = intent;
  const admissions = eligible.map((requestId, i) => ({ requestId, attemptId: attemptIds[i] as string }));
  const probeAttemptId = admission.probe === 'none' ? undefined : (attemptIds[0] as string);
  const next = probeAttemptId === undefined ? undefined : grantProbe(row.breaker, probeAttemptId, now);
  const terms: Omit<AttemptTerms, 'isProbe'> = {
    ...leaseTerms(ctx, lane, now),
    generation: next?.generation ?? row.breaker.generation,
    holdEpoch: intent.account.holdEpoch,
    override: intent.override,
  };
  const probes = next === undefined ? [] : admissions.slice(0, 1);
  const others = admissions.slice(probes.length);
  const attempts = [
    ...(probes.length === 0 ? [] : await admitRequests(tx, probes, { ...terms, isProbe: true })),
    ...(others.length === 0 ? [] : await admitRequests(tx, others, { ...terms, isProbe: false })),
  ];
  if (next === undefined) return { attempts, probeAttemptId: undefined, transition: undefined };
  const context = {
    cause: 'probe_granted',
    outcomeKind: null,
    httpStatus: null,
    requestId: eligible[0] as string,
    providerTaskId: null,
  } as const;
  return { attempts, probeAttemptId, transition: await writeTransition(tx, row, next, context, now) };
}

function leaseTerms(ctx: SubmissionContext, lane: Lane, now: Date) {
  const settings = ctx.settingsOf(lane.operation);
  const leaseEnd = now.getTime() + settings.leaseMs;
  return {
    breakerName: breakerName(lane.provider, lane.operation),
    worker: ctx.worker,
    startedAt: now,
    leaseExpiresAt: new Date(leaseEnd),
    windowUntil: new Date(leaseEnd + RATE_WINDOW_MS),
    slotUntil: new Date(leaseEnd + settings.maxRunMs),
    quarantineUntil: new Date(leaseEnd + settings.rearmQuarantineMs),
  };
}
