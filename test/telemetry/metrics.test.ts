import { describe, expect, test } from 'vitest';
import { createMetrics, type FleetFacts } from '../../src/telemetry/metrics.ts';

const FACTS: FleetFacts = {
  requests: [{ state: 'queued', count: 7 }],
  oldest: [{ state: 'queued', ageSeconds: 12.5 }],
  attention: [{ what: 'outcome unknown', count: 2 }],
  breakers: [{ name: 'sonilo/text-to-music', effectiveState: 'open', consecutiveFailures: 5 }],
  accounts: [
    {
      name: 'default',
      window: 3,
      requestsPerMinute: 60,
      slots: 2,
      maxConcurrentGenerations: 4,
      paused: true,
      holds: [{ operation: null, kind: 'key_refused' }],
      trials: [{ operation: 'text-to-music', waiting: 9 }],
    },
  ],
};

const linesOf = (text: string) =>
  text.split('\n').filter((line) => /^onetake_(?!process_cpu|nodejs)/.test(line));

describe('metrics', () => {
  test('count events by codes, and never carry an id', async () => {
    const { onEvent, text } = createMetrics();
    const settled = {
      requestId: 'id-canary',
      attemptId: 'id-canary',
      from: 'submitting',
      to: 'queued',
      reason: 'rate_limited',
      health: 'account_capacity',
      certainty: 'refused',
      phase: 'response_read',
      httpStatus: 429,
      errorCode: null,
      providerTaskId: 'id-canary',
      attention: null,
    } as const;
    onEvent('submission:settled', settled as never);
    onEvent('submission:settled', settled as never);
    onEvent('account:paused', { account: 'default', kind: 'rate', until: new Date(0) });
    onEvent('asset:stored', { requestId: 'id-canary', index: 0, bytes: 1_000 });
    onEvent('asset:stored', { requestId: 'id-canary', index: 1, bytes: 24 });
    onEvent('process:trouble', { role: 'worker', loop: 'dispatch', errorCode: '57P01', times: 9 });
    onEvent('process:started', { role: 'worker', worker: 'id-canary' });
    const shown = await text(undefined);
    expect(linesOf(shown)).toEqual(
      expect.arrayContaining([
        'onetake_submissions_settled_total{reason="rate_limited",certainty="refused",health="account_capacity"} 2',
        'onetake_account_pauses_total{account="default",kind="rate"} 1',
        'onetake_assets_stored_total 2',
        'onetake_assets_stored_bytes_total 1024',
        'onetake_process_trouble_total{role="worker",loop="dispatch",error_code="57P01"} 9',
        'onetake_database_up 0',
      ]),
    );
    expect(shown).not.toContain('canary');
    expect(shown).not.toContain('onetake_requests{');
  });

  test('show the fleet as the database tells it, and forget what is gone', async () => {
    const { text } = createMetrics();
    expect(linesOf(await text(FACTS))).toEqual(
      expect.arrayContaining([
        'onetake_database_up 1',
        'onetake_requests{state="queued"} 7',
        'onetake_oldest_request_age_seconds{state="queued"} 12.5',
        'onetake_attention{what="outcome unknown"} 2',
        'onetake_breaker_state{breaker="sonilo/text-to-music",state="open"} 1',
        'onetake_breaker_consecutive_failures{breaker="sonilo/text-to-music"} 5',
        'onetake_account_window_posts{account="default"} 3',
        'onetake_account_requests_per_minute{account="default"} 60',
        'onetake_account_slots_used{account="default"} 2',
        'onetake_account_max_concurrent_generations{account="default"} 4',
        'onetake_account_paused{account="default"} 1',
        'onetake_account_held{account="default",operation="all",kind="key_refused"} 1',
        'onetake_account_trial_waiting{account="default",operation="text-to-music"} 9',
      ]),
    );
    const later = await text({ ...FACTS, breakers: [], attention: [], accounts: [] });
    expect(later).not.toMatch(/^onetake_(breaker_state|attention|account_(held|paused))\{/m);
    expect(later).toContain('onetake_requests{state="queued"} 7');
  });

  test('of two processes in one program are apart', async () => {
    const [one, other] = [createMetrics(), createMetrics()];
    one.onEvent('submission:repeated', { requestId: 'a', attemptId: 'b' });
    expect(await one.text(undefined)).toContain('onetake_submissions_repeated_total 1');
    expect(await other.text(undefined)).toContain('onetake_submissions_repeated_total 0');
  });

  test('count each outcome that nobody knows, whatever its reason', async () => {
    const { onEvent, text } = createMetrics();
    for (const certainty of ['unknown', 'accepted', 'unknown', 'refused', 'unsent']) {
      onEvent('submission:settled', { reason: certainty, certainty, health: 'none' } as never);
    }
    expect(await text(undefined)).toContain('onetake_submissions_unknown_total 2');
  });
});
