import { expect, test } from 'vitest';
import { type Clock, stopwatch } from '../../src/core/clock.ts';

type Step = readonly [wall: number, monotonic: number];

/** Read after each step of the two clocks. */
function readings(steps: readonly Step[]): number[] {
  const hands = { wall: 1_000_000, monotonic: 50 };
  const clock: Clock = { now: () => hands.wall, monotonic: () => hands.monotonic };
  const elapsedMs = stopwatch(clock);
  return steps.map(([wall, monotonic]) => {
    hands.wall += wall;
    hands.monotonic += monotonic;
    return elapsedMs();
  });
}

test.each<[string, readonly Step[], readonly number[]]>([
  ['nothing has passed', [[0, 0]], [0]],
  ['both agree', [[70, 70]], [70]],
  ['the machine was suspended: the wall clock says more', [[9_000, 10]], [9_000]],
  ['the wall clock was set back: the monotonic one says more', [[-5_000, 10]], [10]],
  [
    'it was suspended, and then set back by as much',
    [
      [9_000, 10],
      [-9_000, 5],
    ],
    [9_000, 9_005],
  ],
  [
    'it was set back, and then suspended for as long',
    [
      [-9_000, 10],
      [9_000, 5],
    ],
    [10, 9_010],
  ],
  [
    'no clock moves on, and one is set back',
    [
      [-9_000, 0],
      [0, 0],
    ],
    [0, 0],
  ],
  [
    'it is read again and again',
    [
      [3, 3],
      [3, 3],
      [3, 3],
    ],
    [3, 6, 9],
  ],
])('counts what says more between readings: %s', (_title, steps, expected) => {
  expect(readings(steps)).toEqual(expected);
});
