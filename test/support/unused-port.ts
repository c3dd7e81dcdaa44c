import { once } from 'node:events';
import { createServer } from 'node:net';

/** Below the ports that the system gives out by itself, on Linux from 32,768 and elsewhere from 49,152. */
const [FIRST, LAST] = [10_240, 32_767] as const;
const TRIES = 100;

/**
 * A loopback port that nobody listens on, and that stays so: one that was just free among the system's own
 * may be some other test's server or connection a moment later, and even connect to itself.
 */
export async function unusedPort(): Promise<number> {
  for (let n = 0; n < TRIES; n++) {
    const port = FIRST + Math.floor(Math.random() * (LAST - FIRST + 1));
    if (await isUnused(port)) return port;
  }
  throw new Error(`none of ${TRIES} ports was free`);
}

async function isUnused(port: number): Promise<boolean> {
  const probe = createServer().listen(port, '127.0.0.1');
  try {
    await once(probe, 'listening');
  } catch {
    return false;
  }
  await new Promise((resolve) => probe.close(resolve));
  return true;
}
