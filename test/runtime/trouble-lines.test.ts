import { expect, test } from 'vitest';
import type { OnetakeEventName } from '../../src/core/events.ts';
import { TroubleLines } from '../../src/runtime/trouble-lines.ts';

function lines() {
  let now = 0;
  const told: [OnetakeEventName, unknown][] = [];
  const troubles = new TroubleLines(
    (name, event) => void told.push([name, event]),
    () => now,
  );
  return {
    told,
    trouble: (loop = 'rescue', errorCode = 'ECONNREFUSED') =>
      troubles.trouble({ role: 'worker', loop, errorCode }),
    recovered: (loop = 'rescue') => troubles.recovered({ role: 'worker', loop }),
    pass: (ms: number) => {
      now += ms;
    },
  };
}
const event = { role: 'worker', loop: 'rescue', errorCode: 'ECONNREFUSED' };

test('the same trouble is told at once, and then once a minute with how often it came', () => {
  const { told, trouble, pass } = lines();
  for (let n = 0; n < 600; n++) {
    trouble();
    pass(250);
  }
  expect(told).toEqual([
    ['process:trouble', event],
    ['process:trouble', { ...event, times: 240 }],
    ['process:trouble', { ...event, times: 240 }],
  ]);
});

test('another loop and another code are another trouble', () => {
  const { told, trouble } = lines();
  trouble();
  trouble('dispatch');
  trouble('rescue', '57P03');
  expect(told).toHaveLength(3);
});

test('its end is told once, and only if its beginning was', () => {
  const { told, trouble, recovered, pass } = lines();
  recovered();
  trouble();
  recovered();
  recovered();
  // A flapping database is no reason for two lines a second.
  for (let n = 0; n < 50; n++) {
    pass(1_000);
    trouble();
    recovered();
  }
  expect(told.map(([name]) => name)).toEqual(['process:trouble', 'process:recovered']);
});
