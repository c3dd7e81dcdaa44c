import { describe, expect, test } from 'vitest';
import { Reconnect } from '../../src/postgres/reconnect.ts';

const away = () => Promise.reject(new Error('away'));

describe('a server that can’t be reached', () => {
  test('is knocked at by one caller at a time, and all others share what that one learns', async () => {
    const reconnect = new Reconnect();
    await expect(reconnect.connect(away)).rejects.toThrow('away');
    let knocks = 0;
    const refused = async () => {
      knocks++;
      throw new Error(`refused ${knocks}`);
    };
    const callers = await Promise.allSettled(Array.from({ length: 50 }, () => reconnect.connect(refused)));
    expect(knocks).toBe(1);
    for (const caller of callers) expect(caller).toMatchObject({ reason: { message: 'refused 1' } });
  });

  test('that answers again lets all of them through', async () => {
    const reconnect = new Reconnect();
    await expect(reconnect.connect(away)).rejects.toThrow();
    const open = async () => 'open';
    expect(await Promise.all(Array.from({ length: 5 }, () => reconnect.connect(open)))).toEqual(
      Array(5).fill('open'),
    );
    expect(await reconnect.connect(open)).toBe('open');
  });

  test('is left alone for longer and longer, up to about a second', async () => {
    const reconnect = new Reconnect();
    const times: number[] = [];
    const refused = async () => {
      times.push(performance.now());
      throw new Error('away');
    };
    for (let n = 0; n < 6; n++) await reconnect.connect(refused).catch(() => undefined);
    const pauses = times.slice(1).map((time, n) => time - (times[n] as number));
    expect(pauses[0]).toBeGreaterThan(70);
    expect(pauses[3]).toBeGreaterThan(590);
    expect(pauses[4]).toBeGreaterThan(740);
  });

  test('is not what a busy pool means, during an outage neither', async () => {
    const reconnect = new Reconnect();
    const busy = () => Promise.reject(new Error('timeout exceeded when trying to connect'));
    let opened = 0;
    const open = async () => {
      opened++;
      return 'open';
    };
    await expect(reconnect.connect(busy)).rejects.toThrow('timeout exceeded');
    const atOnce = reconnect.connect(open);
    expect(opened).toBe(1);
    expect(await atOnce).toBe('open');
    await expect(reconnect.connect(away)).rejects.toThrow('away');
    await expect(reconnect.connect(busy)).rejects.toThrow('timeout exceeded');
    expect(await reconnect.connect(open)).toBe('open');
  });

  test('of callers under way together counts as one failure, and one who got through as the end of it', async () => {
    const reconnect = new Reconnect();
    const { promise: later, resolve } = Promise.withResolvers<string>();
    const slow = reconnect.connect(() => later);
    await Promise.allSettled([reconnect.connect(away), reconnect.connect(away)]);
    const waiting = [reconnect.connect(async () => 'after'), reconnect.connect(async () => 'after')];
    resolve('open');
    expect(await slow).toBe('open');
    expect(await Promise.all(waiting)).toEqual(['after', 'after']);
  });
});
