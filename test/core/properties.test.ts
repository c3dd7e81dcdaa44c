import fc from 'fast-check';
import { describe, test } from 'vitest';
import * as circuitBreaker from '../../src/core/circuit-breaker.ts';
import { decideSettlement } from '../../src/core/generation-request.ts';
import { outcomeOfResponse, outcomeOfTransportFailure, WORKER_LOST } from '../../src/core/outcome.ts';
import { BREAKER_RULES, type BreakerRule, breakerProperty } from '../support/breaker-rules.ts';
import { REQUEST_RULES, type RequestRule, requestProperty } from '../support/request-history.ts';

// mutants/ shows each of these rules failing on a core that breaks it.

describe('the circuit breaker, in any order of events', () => {
  test.each(Object.keys(BREAKER_RULES) as BreakerRule[])('%s', (rule) => {
    fc.assert(breakerProperty(circuitBreaker, rule), { numRuns: 1_000 });
  });
});

describe('a generation request, in any order of events', () => {
  const core = { decideSettlement, outcomeOfResponse, outcomeOfTransportFailure, WORKER_LOST };

  test.each(Object.keys(REQUEST_RULES) as RequestRule[])('%s', (rule) => {
    fc.assert(requestProperty(core, rule), { numRuns: 500 });
  });
});
