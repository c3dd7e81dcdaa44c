import { describe, expect, it } from 'vitest';
import { describeDeed, planIncidents } from './schedule.ts';
import { LEASE_MS } from './settings.ts';

const TARGETS = {
  mortal: ['worker-2', 'poller-2'],
  steady: ['worker-1'],
  clients: ['worker-1', 'worker-2', 'poller-2', 'app'],
};
const plan = (seed: string, minutes: number) => planIncidents(seed, minutes * 60_000, TARGETS);

describe('the plan of a run', () => {
  it('follows from the seed alone', () => {
    expect(plan('one', 10)).toEqual(plan('one', 10));
    expect(plan('one', 10)).not.toEqual(plan('another', 10));
  });

  it('begins like that of a shorter run', () => {
    const short = plan('one', 3);
    expect(plan('one', 30).slice(0, short.length)).toEqual(short);
  });

  it('holds every kind of incident within twenty minutes', () => {
    const kinds = new Set(plan('one', 20).map(({ deed }) => deed.kind));
    expect(kinds.size).toBe(14);
  });

  it('kills the mortal only, and stops the steady too', () => {
    const deeds = plan('one', 60).map(({ deed }) => deed);
    const targetsOf = (kind: string) =>
      new Set(deeds.flatMap((deed) => (deed.kind === kind && 'target' in deed ? [deed.target] : [])));
    expect(targetsOf('sigkill')).toEqual(new Set(TARGETS.mortal));
    expect(targetsOf('sigterm')).toEqual(new Set(TARGETS.mortal));
    expect(targetsOf('sigstop')).toEqual(new Set([...TARGETS.mortal, ...TARGETS.steady]));
  });

  it('stops processes for shorter and for longer than a lease', () => {
    const lengths = plan('one', 60).flatMap(({ deed }) => (deed.kind === 'sigstop' ? [deed.forMs] : []));
    expect(Math.min(...lengths)).toBeLessThan(LEASE_MS / 2);
    expect(Math.max(...lengths)).toBeGreaterThan(LEASE_MS + 2_000);
  });

  it('lets nothing happen to a process, a network or the server before the last thing is over', () => {
    const busyUntil = new Map<string, number>();
    for (const { atMs, untilMs, deed } of plan('one', 60)) {
      const whose =
        'target' in deed ? `${deed.kind.startsWith('database')} ${deed.target}` : deed.kind.split('_')[0];
      if (deed.kind === 'override') continue;
      expect(atMs).toBeGreaterThanOrEqual(busyUntil.get(String(whose)) ?? 0);
      busyUntil.set(String(whose), untilMs);
    }
  });

  it('never delivers a stalled POST after the deadline of who sent it', () => {
    for (const { deed } of plan('one', 60)) {
      if (deed.kind === 'provider_stall' && deed.then === 'deliver')
        expect(deed.forMs).toBeLessThanOrEqual(2_500);
    }
  });

  it('is told in one line each', () => {
    for (const { deed } of plan('one', 5)) expect(describeDeed(deed)).toMatch(/^[a-z_]+( [a-zA-Z]+=\S.*)?$/);
  });
});
