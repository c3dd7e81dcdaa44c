import { describe, expect, it } from 'vitest';
import { memoryUse } from './memory.ts';
import { POST_BEHAVIOUR_NAMES, planPost } from './provider/faults.ts';
import { idleFault } from './sampler.ts';

const CALM = { behaviour: null, share: 0 };

describe('a session that is idle in a transaction', () => {
  const session = (idle_ms: number) => ({ client_port: 1, application_name: 'onetake worker', idle_ms });

  it('is a fault after a second', () => {
    const calm = { isDisturbed: false, lagMs: 0 };
    expect(idleFault(session(900), 'worker-1', calm)).toBeUndefined();
    expect(idleFault(session(1_100), 'worker-1', calm)).toContain('worker-1');
  });

  it('is one later on a machine that is late with everything', () => {
    expect(idleFault(session(1_900), 'worker-1', { isDisturbed: false, lagMs: 100 })).toBeUndefined();
    expect(idleFault(session(2_100), 'worker-1', { isDisturbed: false, lagMs: 100 })).toBeDefined();
  });

  it('of a stopped process is one when the server’s own limit is over', () => {
    const stopped = { isDisturbed: true, lagMs: 0 };
    expect(idleFault(session(15_500), 'worker-1', stopped)).toBeUndefined();
    expect(idleFault(session(18_000), 'worker-1', stopped)).toBeDefined();
  });
});

describe('the memory of a process', () => {
  const life = (minutes: number, rssMb: (minute: number) => number) =>
    Array.from({ length: minutes * 30 }, (_, n) => ({ at: n * 2_000, rssMb: rssMb(n / 30) }));

  it('is flat when it stays where its plateau was', () => {
    expect(
      memoryUse(
        'worker-1',
        life(10, (minute) => 100 + (minute % 2) * 20),
      ),
    ).toMatchObject({ isFlat: true });
    expect(
      memoryUse(
        'worker-1',
        life(10, (minute) => Math.min(150, 80 + 60 * minute)),
      ),
    ).toMatchObject({ isFlat: true });
  });

  it('is not when it grows on', () => {
    expect(
      memoryUse(
        'worker-1',
        life(10, (minute) => 100 + 15 * minute),
      ),
    ).toMatchObject({ isFlat: false });
  });

  it('says nothing of a short life', () => {
    expect(
      memoryUse(
        'worker-1',
        life(2, () => 100),
      ),
    ).toBeUndefined();
  });
});

describe('what the provider does with a POST', () => {
  it('follows from seed, request and number alone', () => {
    expect(planPost('a', 7, 1, CALM, false)).toEqual(planPost('a', 7, 1, CALM, false));
    const others = [
      planPost('b', 7, 1, CALM, false),
      planPost('a', 8, 1, CALM, false),
      planPost('a', 7, 2, CALM, false),
    ];
    for (const other of others) expect(other).not.toEqual(planPost('a', 7, 1, CALM, false));
  });

  it('is each of its behaviours within a few thousand POSTs, and the same to all in a storm', () => {
    const seen = new Set(Array.from({ length: 6_000 }, (_, n) => planPost('a', n, 1, CALM, false).behaviour));
    expect([...POST_BEHAVIOUR_NAMES].filter((name) => !seen.has(name))).toEqual([]);
    const storm = { behaviour: 'status_503', share: 1 } as const;
    for (let n = 0; n < 50; n++) expect(planPost('a', n, 1, storm, false).behaviour).toBe('status_503');
  });

  it('charges whatever it accepts and nothing that it refuses; behind an error sometimes', () => {
    const plans = Array.from({ length: 6_000 }, (_, n) => planPost('a', n, 1, CALM, false));
    const charged = (pattern: RegExp) =>
      new Set(plans.filter(({ behaviour }) => pattern.test(behaviour)).map((plan) => plan.charged));
    expect(charged(/^accept|_202$|^slow_headers|^answer_after/)).toEqual(new Set([true]));
    expect(charged(/429|status_4(0[0123]|13|22)/)).toEqual(new Set([false]));
    expect(charged(/status_5|read_then|never/)).toEqual(new Set([true, false]));
  });

  it('is right, once it is healed', () => {
    for (let n = 0; n < 50; n++)
      expect(planPost('a', n, 1, CALM, true)).toMatchObject({ behaviour: 'accept', charged: true });
  });
});
