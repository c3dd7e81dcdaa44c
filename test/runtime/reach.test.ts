import { describe, expect, test, vi } from 'vitest';
import type { OnetakeEventName } from '../../src/core/events.ts';
import type { Certainty } from '../../src/core/outcome.ts';
import type { Provider } from '../../src/core/provider.ts';
import { Reach } from '../../src/runtime/reach.ts';

type Event = readonly [OnetakeEventName, unknown];

const SICK: Event = ['worker:sick', { worker: 'worker-1', provider: 'sonilo' }];
const RECOVERED: Event = ['worker:recovered', { worker: 'worker-1', provider: 'sonilo' }];

/** The port, of which only one question is ever asked here. */
function provider(isReachable?: (timeoutMs: number) => Promise<boolean>): Provider {
  const unused = () => Promise.reject(new Error('not asked here'));
  return {
    name: 'sonilo',
    submit: unused,
    readTask: unused,
    close: () => Promise.resolve(),
    ...(isReachable === undefined ? {} : { isReachable }),
  };
}

function setup(providers: Readonly<Record<string, Provider>> = {}) {
  const events: Event[] = [];
  let monotonic = 1_000;
  let wall = Date.parse('2026-08-18T12:00:00.000Z');
  const reach = new Reach({
    worker: 'worker-1',
    clock: { now: () => wall, monotonic: () => monotonic },
    emit: (name, event) => {
      events.push([name, event]);
    },
    providerNamed: (name) => providers[name],
  });
  return {
    reach,
    events,
    pass: (ms: number) => {
      monotonic += ms;
      wall += ms;
    },
    turnWallClock: (ms: number) => {
      wall += ms;
    },
    note: (times: number, certainty: Certainty, name = 'sonilo') => {
      for (let i = 0; i < times; i += 1) reach.note(name, certainty);
    },
  };
}

/** A provider that counts who asks, and answers as told. */
function answering(...answers: (boolean | Error)[]) {
  const timeouts: number[] = [];
  const port = provider((timeoutMs) => {
    const answer = answers[timeouts.length] ?? false;
    timeouts.push(timeoutMs);
    return answer instanceof Error ? Promise.reject(answer) : Promise.resolve(answer);
  });
  return { port, timeouts };
}

describe('a worker', () => {
  test('reaches every provider until it has tried', () => {
    const { reach, events } = setup();
    expect(reach.reaches('sonilo')).toBe(true);
    expect(events).toEqual([]);
  });

  test('is sick at its fifth unsent attempt in a row, and says so once', () => {
    const { reach, events, note } = setup();
    note(4, 'unsent');
    expect(reach.reaches('sonilo')).toBe(true);
    expect(events).toEqual([]);
    note(1, 'unsent');
    expect(reach.reaches('sonilo')).toBe(false);
    note(20, 'unsent');
    expect(events).toEqual([SICK]);
  });

  test.each<Certainty>(['accepted', 'refused', 'unknown'])(
    'begins to count again at one that was %s',
    (sent) => {
      const { reach, events, note } = setup();
      for (let round = 0; round < 5; round += 1) {
        note(4, 'unsent');
        note(1, sent);
      }
      expect(reach.reaches('sonilo')).toBe(true);
      expect(events).toEqual([]);
    },
  );

  test('is sick for one provider alone', () => {
    const { reach, note } = setup();
    note(5, 'unsent');
    note(4, 'unsent', 'other');
    expect(reach.reaches('sonilo')).toBe(false);
    expect(reach.reaches('other')).toBe(true);
  });
});

describe('a sick worker', () => {
  function sick(port: Provider) {
    const world = setup({ sonilo: port });
    world.note(5, 'unsent');
    return world;
  }

  test('asks nothing before 15 seconds are over, and then once in each 15', async () => {
    const { port, timeouts } = answering();
    const { reach, pass } = sick(port);
    const asked: number[] = [];
    for (const ms of [0, 14_999, 1, 0, 14_999, 1, 0]) {
      pass(ms);
      await reach.check();
      asked.push(timeouts.length);
    }
    expect(asked).toEqual([0, 0, 1, 1, 1, 2, 2]);
    expect(timeouts).toEqual([5_000, 5_000]);
  });

  test('goes on when a free request gets through, and says so', async () => {
    const { port } = answering(false, true);
    const { reach, events, pass } = sick(port);
    pass(15_000);
    expect(await reach.check()).toBe(false);
    expect(reach.reaches('sonilo')).toBe(false);
    pass(15_000);
    expect(await reach.check()).toBe(true);
    expect(reach.reaches('sonilo')).toBe(true);
    expect(events).toEqual([SICK, RECOVERED]);
  });

  test('stays sick when the question itself fails', async () => {
    const { port } = answering(new Error('no route'), true);
    const { reach, events, pass } = sick(port);
    pass(15_000);
    await reach.check();
    expect(reach.reaches('sonilo')).toBe(false);
    expect(events).toEqual([SICK]);
    pass(15_000);
    await reach.check();
    expect(reach.reaches('sonilo')).toBe(true);
  });

  test('needs five more to fall sick again', async () => {
    const { port } = answering(true);
    const { reach, events, note, pass } = sick(port);
    note(3, 'unsent');
    pass(15_000);
    await reach.check();
    note(4, 'unsent');
    expect(reach.reaches('sonilo')).toBe(true);
    note(1, 'unsent');
    expect(reach.reaches('sonilo')).toBe(false);
    expect(events).toEqual([SICK, RECOVERED, SICK]);
  });

  test('asks once however many ask at the same time', async () => {
    const { port, timeouts } = answering(true);
    const { reach, events, pass } = sick(port);
    pass(15_000);
    const told = await Promise.all([reach.check(), reach.check(), reach.check()]);
    expect(told).toEqual([true, false, false]);
    expect(timeouts).toHaveLength(1);
    expect(events).toEqual([SICK, RECOVERED]);
  });

  test.each([
    ['a provider that cannot be asked for free', { sonilo: provider() }],
    ['a provider that is gone from the configuration', {}],
  ])('waits a minute for %s', async (_title, providers) => {
    const { reach, events, note, pass } = setup(providers);
    note(5, 'unsent');
    for (const ms of [15_000, 15_000, 15_000, 14_999]) {
      pass(ms);
      await reach.check();
      expect(reach.reaches('sonilo')).toBe(false);
    }
    pass(15_000);
    await reach.check();
    expect(reach.reaches('sonilo')).toBe(true);
    expect(events).toEqual([SICK, RECOVERED]);
  });

  test('waits the whole minute, however late its rounds come', async () => {
    const { reach, pass } = sick(provider());
    for (const ms of [44_999, 15_000]) {
      pass(ms);
      await reach.check();
      expect(reach.reaches('sonilo')).toBe(false);
    }
    pass(15_000);
    await reach.check();
    expect(reach.reaches('sonilo')).toBe(true);
  });

  test('waits by the monotonic clock, whatever the wall clock says', async () => {
    const { port, timeouts } = answering(true);
    const { reach, pass, turnWallClock } = sick(port);
    turnWallClock(86_400_000);
    await reach.check();
    expect(timeouts).toEqual([]);
    turnWallClock(-2 * 86_400_000);
    pass(15_000);
    await reach.check();
    expect(timeouts).toHaveLength(1);
  });

  test('asks each provider for itself, whatever another one answers', async () => {
    const here = answering(true);
    const there = answering(false);
    const { reach, note, pass } = setup({ sonilo: here.port, other: there.port });
    note(5, 'unsent', 'other');
    note(5, 'unsent');
    pass(15_000);
    await reach.check();
    expect([reach.reaches('sonilo'), reach.reaches('other')]).toEqual([true, false]);
    expect([here.timeouts.length, there.timeouts.length]).toEqual([1, 1]);
  });

  test('asks no second time while the first question is unanswered, however long that takes', async () => {
    const answers: ((well: boolean) => void)[] = [];
    const { reach, events, pass } = sick(
      provider(() => new Promise<boolean>((resolve) => void answers.push(resolve))),
    );
    pass(15_000);
    const first = reach.check();
    for (let n = 0; n < 3; n += 1) {
      pass(15_000);
      expect(await reach.check()).toBe(false);
    }
    expect(answers).toHaveLength(1);
    answers[0]?.(false);
    expect(await first).toBe(false);
    const second = reach.check();
    expect(answers).toHaveLength(2);
    answers[1]?.(true);
    expect(await second).toBe(true);
    expect(events).toEqual([SICK, RECOVERED]);
  });

  test('hears of one provider while another one keeps silent', async () => {
    const here = answering(true);
    const silent = provider(() => new Promise<boolean>(() => undefined));
    const { reach, events, note, pass } = setup({ other: silent, sonilo: here.port });
    note(5, 'unsent', 'other');
    note(5, 'unsent');
    pass(15_000);
    void reach.check();
    await vi.waitFor(() => expect(events).toContainEqual(RECOVERED));
    expect([reach.reaches('sonilo'), reach.reaches('other')]).toEqual([true, false]);
  });

  test('survives a question that throws at once', async () => {
    const { reach, pass } = sick(
      provider(() => {
        throw new Error('not made for this');
      }),
    );
    pass(15_000);
    expect(await reach.check()).toBe(false);
    expect(reach.reaches('sonilo')).toBe(false);
  });
});
