import { expect, test } from 'vitest';
import { type Clock, elapsedMs, startOf } from '../../src/core/clock.ts';

function setup() {
  const hands = { wall: 1_000, monotonic: 50 };
  const clock: Clock = { now: () => hands.wall, monotonic: () => hands.monotonic };
  return { hands, clock, start: startOf(clock) };
}

test('reads both clocks at the start', () => {
  expect(setup().start).toEqual({ wall: 1_000, monotonic: 50 });
});

test.each([
  ['nothing has passed', 0, 0, 0],
  ['both agree', 70, 70, 70],
  ['the machine was suspended: the wall clock says more', 9_000, 10, 9_000],
  ['the wall clock was set back: the monotonic one says more', -5_000, 10, 10],
])('counts the larger of both when %s', (_title, wall, monotonic, expected) => {
  const { hands, clock, start } = setup();
  hands.wall += wall;
  hands.monotonic += monotonic;
  expect(elapsedMs(clock, start)).toBe(expected);
});
