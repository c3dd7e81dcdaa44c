import { describe, expect, test } from 'vitest';
import { createSimulator } from '../../src/simulator/create-simulator.ts';
import { bodyOf, SONG, setUp, stoppedClock } from './harness.ts';

describe('options', () => {
  test.each<[string, unknown, string]>([
    ['an unknown key', { runTimeMS: 5 }, 'runTimeMS: unknown key. Did you mean "runTimeMs"?'],
    ['a numeric string', { port: '80' }, 'port: expected a whole number from 0 to 65535, got "80".'],
    ['a fraction', { requestsPerMinute: 1.5 }, 'requestsPerMinute: expected a whole number'],
    ['null', { runTimeMs: null }, 'runTimeMs: expected a whole number'],
    ['zero where one is least', { maxConcurrentGenerations: 0 }, 'maxConcurrentGenerations: expected'],
    [
      'an unknown style',
      { rateRetryAfter: 'minutes' },
      'rateRetryAfter: expected one of seconds, http-date, absent',
    ],
    ['a host name', { host: 'example.com' }, 'host: expected an IP address or localhost.'],
    ['a clock that is none', { clock: {} }, 'clock: expected an object with a now() function.'],
    ['a hook that is none', { onPost: 'log' }, 'onPost: expected a function, got "log".'],
    ['a bad rule', { script: [{ respond: { end: 'x' } }] }, 'script[0].respond.end: expected one of'],
    ['no object', 7, 'options: expected an object, got 7.'],
  ])('refuse %s', (_what, options, message) => {
    expect(() => createSimulator(options as object)).toThrow(
      expect.objectContaining({ code: 'invalid_option', message: expect.stringContaining(message) }),
    );
  });

  test('refuse a bad key behaviour without repeating the key', () => {
    const keys = { sk_secret: { statsu: 402 }, sk_private: 200 };
    expect(() => createSimulator({ keys } as object)).toThrow(/keys\[0\]\.statsu.*"status".*keys\[1\]/s);
    expect(() => createSimulator({ keys } as object)).not.toThrow(/secret|private/);
  });
});

describe('its life', () => {
  test('has one address, however often it is started', async () => {
    const { simulator, port, filesPort } = await setUp();
    expect(await simulator.start()).toMatchObject({ port, filesPort });
    expect(port).not.toBe(filesPort);
  });

  test('can be stopped often, before a start, and not started again', async () => {
    const simulator = createSimulator();
    await simulator.stop();
    await simulator.stop();
    await expect(simulator.start()).rejects.toThrow(expect.objectContaining({ code: 'stopped' }));
  });

  test('ends held POSTs and downloads with a stop', async () => {
    const { simulator, post, url } = await setUp({ script: [{ respond: { delayMs: 3_600_000 } }] });
    const first = post(SONG);
    const held = [first, post(SONG), post(SONG)].map((answer) => expect(answer).rejects.toThrow());
    await simulator[Symbol.asyncDispose]();
    await Promise.all(held);
    await expect(fetch(url)).rejects.toThrow();
  });

  test('says which port is taken, and leaves the other one free', async () => {
    const { port, simulator, filesPort } = await setUp();
    await expect(createSimulator({ port }).start()).rejects.toThrow(
      expect.objectContaining({
        code: 'simulator_failed',
        message: expect.stringContaining(`127.0.0.1:${port}: EADDRINUSE`),
      }),
    );
    await simulator.stop();
    const blocker = await setUp({ port });
    await expect(createSimulator({ filesPort, port: blocker.port }).start()).rejects.toThrow('EADDRINUSE');
    expect(await setUp({ filesPort })).toMatchObject({ filesPort });
  });

  test('listens on IPv6 when told to', async () => {
    const { url, post } = await setUp({ host: '::1' });
    expect(url).toMatch(/^http:\/\/\[::1\]:\d+$/);
    expect((await post(SONG)).status).toBe(202);
  });

  test('spreads run times by form, the same for the same form', async () => {
    const run = async () => {
      const clock = stoppedClock();
      const { post, get } = await setUp({ runTimeMs: 1_000, runTimeJitter: 1, clock });
      const ids: string[] = [];
      for (const prompt of ['a', 'b', 'c']) {
        const { task_id: taskId } = await bodyOf(post({ ...SONG, prompt }));
        ids.push(String(taskId));
      }
      clock.advance(1_000);
      return await Promise.all(ids.map(async (id) => (await bodyOf(get(`/v1/tasks/${id}`)))['status']));
    };
    const first = await run();
    expect(new Set(first).size).toBe(2);
    expect(await run()).toEqual(first);
  });
});
