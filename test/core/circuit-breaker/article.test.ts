import { expect, test } from 'vitest';
import {
  applyOutcome,
  type CircuitBreaker,
  decidePermit,
  grantProbe,
  invalidBreakerSetting,
  newCircuitBreaker,
} from '../../../src/core/circuit-breaker.ts';
import { classifyGenerationOutcome } from '../../../src/core/outcome.ts';
import { SETTINGS } from './fixtures.ts';

// The twelve tests of the article that this project began with, by their names.

type Observed = Parameters<typeof classifyGenerationOutcome>[0];

/** One breaker in memory, fed by the classifier, with a clock that stands until it is moved. */
function setup(settings = SETTINGS) {
  let breaker: CircuitBreaker = newCircuitBreaker();
  let nowMs = 1_000_000;
  let attempts = 0;
  const now = () => new Date(nowMs);
  return {
    state: () => breaker,
    pass: (ms: number) => {
      nowMs += ms;
    },
    ask: () => decidePermit(breaker, now()),
    probe: () => {
      attempts += 1;
      const granted = grantProbe(breaker, `probe-${attempts}`, now());
      if (granted !== undefined) breaker = granted;
      return granted !== undefined;
    },
    settle: (observed: Observed) => {
      const { kind } = classifyGenerationOutcome(observed);
      const attemptId = breaker.state === 'half_open' ? breaker.probeAttemptId : 'attempt';
      const outcome = { attemptId, generation: breaker.generation, health: kind };
      breaker = applyOutcome(breaker, outcome, settings, now()).next;
    },
  };
}

function opened() {
  const service = setup();
  for (let failure = 0; failure < 3; failure += 1) service.settle({ status: 502 });
  return service;
}

function probing() {
  const service = opened();
  service.pass(30_000);
  service.probe();
  return service;
}

test('Start closed and allow a normal submission.', () => {
  const service = setup();
  expect(service.state().state).toBe('closed');
  expect(service.ask()).toEqual({ permit: 'allow' });
});

test('Open exactly at the consecutive dependency-failure threshold.', () => {
  const service = setup();
  service.settle({ status: 502 });
  service.settle({ status: 502 });
  service.settle({ status: 202 });
  service.settle({ status: 502 });
  service.settle({ status: 502 });
  expect(service.state().state).toBe('closed');
  service.settle({ status: 502 });
  expect(service.state().state).toBe('open');
});

test('Fail fast while open and report the cooldown boundary.', () => {
  const service = opened();
  const boundary = new Date(1_000_000 + 30_000);
  expect(service.ask()).toEqual({ permit: 'refuse', retryAt: boundary });
  service.pass(29_999);
  expect(service.ask()).toEqual({ permit: 'refuse', retryAt: boundary });
});

test('Allow only one half-open probe.', () => {
  const service = opened();
  service.pass(30_000);
  expect([service.probe(), service.probe(), service.probe()]).toEqual([true, false, false]);
  expect(service.state().state).toBe('half_open');
  expect(service.ask()).toEqual({ permit: 'refuse', retryAt: undefined });
});

test('Close and reset after a successful probe.', () => {
  const service = probing();
  service.settle({ status: 202 });
  expect(service.state()).toMatchObject({ state: 'closed', consecutiveFailures: 0 });
  expect(service.ask()).toMatchObject({ permit: 'allow' });
});

test('Reopen after a failed probe.', () => {
  const service = probing();
  service.settle({ status: 503 });
  expect(service.state()).toMatchObject({ state: 'open', retryAt: new Date(1_000_000 + 60_000) });
});

test('Reopen after a neutral probe because health remains unknown.', () => {
  for (const status of [429, 422, 418]) {
    const service = probing();
    service.settle({ status });
    expect(service.state()).toMatchObject({ state: 'open', retryAt: new Date(1_000_000 + 60_000) });
  }
});

test('Count the documented `502` class as dependency failure.', () => {
  for (const status of [500, 502, 503, 504]) {
    expect(classifyGenerationOutcome({ status })).toEqual({
      kind: 'dependency_failure',
      countsBreaker: true,
      ambiguousSubmission: false,
    });
  }
});

test('Keep `429` capacity signals out of the failure count.', () => {
  const service = setup();
  for (let refusal = 0; refusal < 10; refusal += 1) service.settle({ status: 429 });
  expect(service.state()).toMatchObject({ state: 'closed', consecutiveFailures: 0 });
  expect(classifyGenerationOutcome({ status: 429 }).kind).toBe('capacity_signal');
});

test('Keep request and account failures out of the failure count.', () => {
  const service = setup();
  for (const status of [400, 401, 402, 403, 413, 422]) {
    service.settle({ status });
    expect(classifyGenerationOutcome({ status }).kind).toBe('request_or_account_failure');
  }
  expect(service.state()).toMatchObject({ state: 'closed', consecutiveFailures: 0 });
});

test('Mark transport failure as both breaker evidence and an ambiguous submission.', () => {
  const service = setup();
  service.settle({ transportError: true });
  expect(service.state()).toMatchObject({ state: 'closed', consecutiveFailures: 1 });
  expect(classifyGenerationOutcome({ transportError: true })).toEqual({
    kind: 'dependency_failure',
    countsBreaker: true,
    ambiguousSubmission: true,
  });
});

test('Reject an invalid threshold or cooldown before serving traffic.', () => {
  for (const invalid of [0, -1, 1.5, Number.NaN]) {
    expect(invalidBreakerSetting({ ...SETTINGS, failureThreshold: invalid })).toBe('failureThreshold');
    expect(invalidBreakerSetting({ ...SETTINGS, cooldownMs: invalid })).toBe('cooldownMs');
  }
  expect(invalidBreakerSetting(SETTINGS)).toBeUndefined();
});
