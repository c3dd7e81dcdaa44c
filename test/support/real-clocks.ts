import { beforeEach, expect } from 'vitest';

// Test files share a process, so a clock that one of them leaves frozen or turned stops the next one's loops.

const SEEN = Symbol.for('onetake real clocks');

const clocks = () => ({
  setTimeout,
  setInterval,
  setImmediate,
  Date,
  now: Date.now,
  monotonic: performance.now,
});

const seen = globalThis as { [SEEN]?: ReturnType<typeof clocks> };
// Of the process, not of the file: what a file before has left behind is not the real one.
seen[SEEN] ??= clocks();
const real = seen[SEEN];

function expectRealClocks(): void {
  const now = clocks();
  for (const name of Object.keys(real) as (keyof typeof real)[]) {
    expect(now[name] === real[name], `${name} is the real one`).toBe(true);
  }
}

expectRealClocks();
// Callbacks run in reverse order: this one comes after those of the test itself.
beforeEach(({ onTestFinished }) => onTestFinished(expectRealClocks));
