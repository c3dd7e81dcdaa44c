#!/usr/bin/env -S node --
// The gate. Nothing may be imported statically here: a static import is loaded first, and on an old Node it
// fails with a stack trace before this file can say what is wrong. The syntax stays old for the same reason.
const [major = 0, minor = 0] = process.versions.node.split('.').map(Number);

if (major < 22 || (major === 22 && minor < 19)) {
  process.stderr.write(
    `onetake needs Node.js 22.19 or newer, and this is ${process.versions.node}: run it with a newer Node.js.\n`,
  );
  process.exitCode = 2;
} else {
  // The first process of a container has no defaults for signals: one that came before main.ts listens would be
  // lost, and the container killed at the end of its grace. These listeners stay: taking the last one off
  // would drop a signal that has come and waits for its turn.
  const exitCodes: readonly (readonly [NodeJS.Signals, number])[] = [
    ['SIGINT', 130],
    ['SIGTERM', 143],
    ['SIGHUP', 129],
  ];
  for (const [signal, exitCode] of exitCodes) {
    process.on(signal, () => {
      if (process.listenerCount(signal) === 1) process.exit(exitCode);
    });
  }
  import('./main.ts').catch((error: unknown) => {
    process.stderr.write(
      `onetake could not start: ${error instanceof Error ? error.message : String(error)}\n`,
    );
    process.exitCode = 1;
  });
}

export {};
