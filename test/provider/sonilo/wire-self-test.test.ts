import { channel } from 'node:diagnostics_channel';
import { Server, Socket } from 'node:net';
import { describe, expect, onTestFinished, test, vi } from 'vitest';
import { createSoniloProvider } from '../../../src/provider/sonilo/client.ts';
import type { OpenClient } from '../../../src/provider/sonilo/post.ts';
import { provenOracle } from '../../../src/provider/sonilo/proven-oracle.ts';
import { createWireOracle, SEND_HEADERS } from '../../../src/provider/sonilo/wire-oracle.ts';
import { testWire } from '../../../src/provider/sonilo/wire-self-test.ts';
import { BROKEN_CHANNELS } from './broken-channel.ts';

// Deadlines are waited for, on machines on which much else runs.
vi.setConfig({ testTimeout: 30_000 });

const HEALTHY = { wireOracle: 'healthy', errorCode: null };

/** The test of one oracle; it leaves no subscription behind. */
async function tested(open?: OpenClient) {
  const oracle = createWireOracle();
  const found = await testWire(oracle, open);
  oracle.close();
  return found;
}

describe('the self-test', () => {
  test('finds the channel of this undici healthy, and leaves nothing behind', async () => {
    expect(await tested()).toEqual(HEALTHY);
    expect(channel(SEND_HEADERS).hasSubscribers).toBe(false);
  });

  test('is not confused by what else the process sends meanwhile', async () => {
    const found = await Promise.all(Array.from({ length: 20 }, () => tested()));
    expect(found).toEqual(Array.from({ length: 20 }, () => HEALTHY));
  });

  test.each([
    ['publishes nothing', 'silent'],
    ['has no subscribers, it says', 'silent'],
    ['publishes nothing that is an object', 'silent'],
    ['leaves the request out', 'silent'],
    ['leaves the socket out', 'silent'],
    ['publishes another request', 'silent'],
    ['publishes a copy of the body', 'unknown_shape'],
    ['publishes another socket', 'unknown_shape'],
    ['publishes twice', 'unknown_shape'],
    ['publishes after the byte', 'unknown_shape'],
    ['publishes long after the byte', 'silent'],
  ] as const)('a channel that %s is %s', async (how, wireOracle) => {
    BROKEN_CHANNELS[how]();
    expect(await tested()).toEqual({ wireOracle, errorCode: null });
  });

  test('a socket that sends although it was destroyed is found out', async () => {
    const { destroy } = Socket.prototype;
    onTestFinished(() => {
      Socket.prototype.destroy = destroy;
    });
    let destroyed = 0;
    Socket.prototype.destroy = function late(this: Socket, error?: Error) {
      // The first to be destroyed before a byte is the one that is held back.
      if (this.bytesWritten > 0 || this.bytesRead > 0 || destroyed++ > 0) return destroy.call(this, error);
      this.write('a byte', () => destroy.call(this, error));
      return this;
    };
    expect(await tested()).toEqual({ wireOracle: 'unknown_shape', errorCode: null });
  });

  test('without a loopback interface nothing is proven', async () => {
    const { listen } = Server.prototype;
    onTestFinished(() => {
      Server.prototype.listen = listen;
    });
    Server.prototype.listen = function unable(this: Server) {
      process.nextTick(() =>
        this.emit('error', Object.assign(new Error('x'), { code: 'EADDRNOTAVAIL', syscall: 'listen' })),
      );
      return this;
    };
    expect(await tested()).toEqual({ wireOracle: 'untested', errorCode: 'EADDRNOTAVAIL' });
  });

  test('a loopback that never answers ends in time', async () => {
    const open: OpenClient = () =>
      ({ dispatch: () => true, destroy: async () => undefined }) as unknown as ReturnType<OpenClient>;
    const startedAt = performance.now();
    expect(await tested(open)).toEqual({ wireOracle: 'untested', errorCode: 'self_test_deadline' });
    expect(performance.now() - startedAt).toBeLessThan(8_000);
  });
});

describe('the standing of the oracle in a process', () => {
  test('is found once, however many ask, and before the first POST', async () => {
    let tests = 0;
    const proven = provenOracle(createWireOracle(), async () => {
      tests++;
      return { wireOracle: 'healthy', errorCode: null };
    });
    expect(proven.health).toBe('untested');
    await Promise.all([proven.prove(), proven.prove(), proven.prove()]);
    expect([await proven.prove(), proven.health, tests]).toEqual([HEALTHY, 'healthy', 1]);
  });

  test('a test that could not run is made again a minute later, beside the caller', async () => {
    let now = 0;
    const clock = performance.now;
    performance.now = () => now;
    onTestFinished(() => {
      performance.now = clock;
    });
    const answers = ['untested', 'untested', 'healthy', 'silent'] as const;
    let tests = 0;
    const proven = provenOracle(createWireOracle(), async () => ({
      wireOracle: answers[tests++] ?? 'silent',
      errorCode: null,
    }));
    const ask = async (at: number) => {
      now = at;
      const { wireOracle } = await proven.prove();
      await new Promise(setImmediate);
      return [wireOracle, proven.health, tests];
    };
    expect(await ask(0)).toEqual(['untested', 'untested', 1]);
    expect(await ask(59_999)).toEqual(['untested', 'untested', 1]);
    expect(await ask(60_000)).toEqual(['untested', 'untested', 2]);
    expect(await ask(119_999)).toEqual(['untested', 'untested', 2]);
    expect(await ask(120_000)).toEqual(['untested', 'healthy', 3]);
    expect(await ask(900_000)).toEqual(['healthy', 'healthy', 3]);
  });

  test('once distrusted it stays so', async () => {
    const proven = provenOracle(createWireOracle(), async () => ({ wireOracle: 'healthy', errorCode: null }));
    await proven.prove();
    proven.distrust();
    expect([await proven.prove(), proven.health]).toEqual([
      { wireOracle: 'silent', errorCode: null },
      'silent',
    ]);
  });

  test('is what the provider tells whoever asks', async () => {
    const provider = createSoniloProvider({ baseUrl: 'http://127.0.0.1:9' });
    expect(await provider.selfTest?.()).toEqual(HEALTHY);
    await provider.close();
    expect(channel(SEND_HEADERS).hasSubscribers).toBe(false);
  });
});
