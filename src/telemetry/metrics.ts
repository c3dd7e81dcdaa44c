import { Counter, collectDefaultMetrics, Gauge, Registry } from 'prom-client';
import type { OnetakeEventName, OnetakeEvents } from '../core/events.ts';

/** What the database says of the whole fleet, for gauges. Counts and ages only. */
export interface FleetFacts {
  readonly requests: readonly { readonly state: string; readonly count: number }[];
  /** How long the first of them has been waiting; none without one. */
  readonly oldest: readonly { readonly state: string; readonly ageSeconds: number }[];
  readonly attention: readonly { readonly what: string; readonly count: number }[];
  readonly breakers: readonly {
    readonly name: string;
    readonly effectiveState: string;
    readonly consecutiveFailures: number;
  }[];
  readonly accounts: readonly {
    readonly name: string;
    readonly window: number;
    readonly requestsPerMinute: number;
    readonly slots: number;
    readonly maxConcurrentGenerations: number;
    readonly paused: boolean;
    readonly holds: readonly { readonly operation: string | null; readonly kind: string }[];
    readonly trials: readonly { readonly operation: string | null; readonly waiting: number }[];
  }[];
}

export interface Metrics {
  readonly onEvent: <Name extends OnetakeEventName>(name: Name, event: OnetakeEvents[Name]) => void;
  /** Prometheus text, version 0.0.4. Without facts (no database) the fleet's gauges are left out. */
  text(facts: FleetFacts | undefined): Promise<string>;
  readonly contentType: string;
}

type Counted = { [Name in OnetakeEventName]?: (event: OnetakeEvents[Name]) => void };

/**
 * Counters of this process, from its events; gauges of the fleet, the same from every process. Labels are
 * names and codes with few values: never an id, and nothing of a customer.
 */
export function createMetrics(): Metrics {
  const registry = new Registry();
  collectDefaultMetrics({ register: registry, prefix: 'onetake_' });
  const fleet = new Registry();
  const counters = countersIn(registry);
  const gauges = gaugesIn(fleet);
  const databaseUp = new Gauge({
    name: 'onetake_database_up',
    help: '1 when the database answered this very scrape.',
    registers: [registry],
  });
  return {
    onEvent: (name, event) => counters[name]?.(event),
    async text(facts) {
      databaseUp.set(facts === undefined ? 0 : 1);
      if (facts === undefined) return registry.metrics();
      gauges(facts);
      return `${await registry.metrics()}\n${await fleet.metrics()}`;
    },
    contentType: registry.contentType,
  };
}

function countersIn(registry: Registry): Counted {
  const counter = <Label extends string>(name: string, help: string, labelNames: readonly Label[] = []) =>
    new Counter<Label>({ name: `onetake_${name}`, help, labelNames, registers: [registry] });
  const admitted = counter('submissions_admitted_total', 'Permits to POST, written before the POST.', [
    'account',
    'operation',
    'probe',
  ]);
  const settled = counter('submissions_settled_total', 'Outcomes of POSTs that this process stored.', [
    'reason',
    'certainty',
    'health',
  ]);
  // Without labels, as whatever an alert looks at for an increase: a series that is not there at 0 hides its first one.
  const unknown = counter('submissions_unknown_total', 'Outcomes of POSTs that nobody knows.');
  const capacity = counter('account_pauses_total', '429s that paused an account, by kind.', [
    'account',
    'kind',
  ]);
  const holds = counter('account_holds_total', 'Holds that an answer set.', ['account', 'kind']);
  const transitions = counter('breaker_transitions_total', 'Transitions that this process announced.', [
    'breaker',
    'layer',
    'next_state',
    'cause',
    'shadow',
  ]);
  const alerts = counter('submission_alerts_total', 'Answers that break the contract.', ['reason']);
  const repeated = counter('submissions_repeated_total', 'Second sends of one POST, stopped before a byte.');
  const unsettled = counter('submissions_unsettled_total', 'Outcomes that could not be committed at once.');
  const spool = counter('spool_trouble_total', 'Times the spool directory failed.', ['action']);
  const unreplayed = counter('spool_unreplayed_total', 'Spooled outcomes that no replay can record.', [
    'reason',
  ]);
  const finished = counter('tasks_finished_total', 'Tasks that the provider finished.', ['to']);
  const streams = counter('streams_ended_total', 'Streams that were read to an end.', [
    'to',
    'failure_reason',
  ]);
  const refunded = counter('tasks_refunded_total', 'Refunds that the provider confirmed.');
  const unreadable = counter('tasks_unreadable_total', 'Polls without a usable answer.', ['reason']);
  const stored = counter('assets_stored_total', 'Files brought in.');
  const bytes = counter('assets_stored_bytes_total', 'Bytes of the files brought in.');
  const failed = counter('assets_failed_total', 'Downloads that failed and are tried again.', ['error_code']);
  const lost = counter('assets_lost_total', 'Results that can not be had any more.');
  const rescued = counter('rescued_total', 'What sweeps put right.', ['what']);
  const expired = counter('requests_expired_total', 'Requests not submitted by their deadline.');
  const trouble = counter('process_trouble_total', 'Failed rounds of a loop, as often as they were told.', [
    'role',
    'loop',
    'error_code',
  ]);
  const sick = counter('worker_sick_total', 'Times this worker stopped for want of a way to a provider.');
  return {
    'submission:admitted': ({ account, operation, isProbe }) =>
      admitted.inc({ account, operation, probe: String(isProbe) }),
    'submission:settled': ({ reason, certainty, health }) => {
      settled.inc({ reason, certainty, health });
      if (certainty === 'unknown') unknown.inc();
    },
    'account:paused': ({ account, kind }) => capacity.inc({ account, kind }),
    'account:held': ({ account, kind }) => holds.inc({ account, kind }),
    'breaker:transition': ({ breakerName, layer, nextState, cause, shadow }) =>
      transitions.inc({ breaker: breakerName, layer, next_state: nextState, cause, shadow: String(shadow) }),
    'submission:alert': ({ reason }) => alerts.inc({ reason }),
    'submission:repeated': () => repeated.inc(),
    'submission:unsettled': () => unsettled.inc(),
    'spool:trouble': ({ action }) => spool.inc({ action }),
    'spool:unreplayed': ({ reason }) => unreplayed.inc({ reason }),
    'task:finished': ({ to }) => finished.inc({ to }),
    'stream:ended': ({ to, failureReason }) => streams.inc({ to, failure_reason: failureReason ?? '' }),
    'task:refunded': () => refunded.inc(),
    'task:unreadable': ({ reason }) => unreadable.inc({ reason }),
    'asset:stored': (event) => {
      stored.inc();
      bytes.inc(event.bytes);
    },
    'asset:failed': ({ errorCode }) => failed.inc({ error_code: errorCode }),
    'asset:lost': () => lost.inc(),
    'rescue:done': (event) => rescued.inc({ what: event.rescued }, event.count),
    'request:expired': () => expired.inc(),
    'process:trouble': ({ role, loop, errorCode, times = 1 }) =>
      trouble.inc({ role, loop, error_code: errorCode }, times),
    'worker:sick': () => sick.inc(),
  };
}

function gaugesIn(registry: Registry): (facts: FleetFacts) => void {
  const gauge = <Label extends string>(name: string, help: string, labelNames: readonly Label[]) =>
    new Gauge<Label>({ name: `onetake_${name}`, help, labelNames, registers: [registry] });
  const requests = gauge('requests', 'Requests that are not at their end.', ['state']);
  const oldest = gauge('oldest_request_age_seconds', 'Age of the oldest request in this state.', ['state']);
  const attention = gauge('attention', 'What waits for a person.', ['what']);
  const breaker = gauge('breaker_state', '1 for the effective state of each breaker.', ['breaker', 'state']);
  const failures = gauge('breaker_consecutive_failures', 'Dependency failures in a row.', ['breaker']);
  const posts = gauge('account_window_posts', "POSTs inside the provider's minute.", ['account']);
  const limit = gauge('account_requests_per_minute', 'The limit for it.', ['account']);
  const slots = gauge('account_slots_used', 'Generations that may be running.', ['account']);
  const most = gauge('account_max_concurrent_generations', 'The limit for it.', ['account']);
  const paused = gauge('account_paused', '1 while a 429 pauses the account.', ['account']);
  const held = gauge('account_held', '1 for each hold in force.', ['account', 'operation', 'kind']);
  const onTrial = gauge(
    'account_trial_waiting',
    'Requests that wait while one goes first, alone, after the end of a hold; there is one only until then.',
    ['account', 'operation'],
  );
  return (facts) => {
    // What is gone must not go on being reported.
    registry.resetMetrics();
    for (const each of facts.requests) requests.set({ state: each.state }, each.count);
    for (const each of facts.oldest) oldest.set({ state: each.state }, each.ageSeconds);
    for (const each of facts.attention) attention.set({ what: each.what }, each.count);
    for (const { name, effectiveState, consecutiveFailures } of facts.breakers) {
      breaker.set({ breaker: name, state: effectiveState }, 1);
      failures.set({ breaker: name }, consecutiveFailures);
    }
    for (const account of facts.accounts) {
      const label = { account: account.name };
      posts.set(label, account.window);
      limit.set(label, account.requestsPerMinute);
      slots.set(label, account.slots);
      most.set(label, account.maxConcurrentGenerations);
      paused.set(label, account.paused ? 1 : 0);
      for (const { operation, kind } of account.holds) {
        held.set({ account: account.name, operation: operation ?? 'all', kind }, 1);
      }
      for (const { operation, waiting } of account.trials) {
        onTrial.set({ account: account.name, operation: operation ?? 'all' }, waiting);
      }
    }
  };
}
