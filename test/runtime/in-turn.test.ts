import { describe, expect, it } from 'vitest';
import { inTurn } from '../../src/runtime/in-turn.ts';

function gate() {
  let open = (): void => undefined;
  const opened = new Promise<void>((resolve) => {
    open = resolve;
  });
  return { open, opened };
}

describe('work for one object', () => {
  it('begins when what came before it has ended, in the order in which it came', async () => {
    const key = {};
    const first = gate();
    const seen: string[] = [];
    const all = [
      inTurn(key, async () => {
        seen.push('first begins');
        await first.opened;
        seen.push('first ends');
      }),
      inTurn(key, async () => void seen.push('second')),
      inTurn(key, async () => void seen.push('third')),
    ];
    // Another object's does not wait.
    await inTurn({}, async () => void seen.push('another object'));
    expect(seen).toEqual(['first begins', 'another object']);
    first.open();
    await Promise.all(all);
    expect(seen.slice(2)).toEqual(['first ends', 'second', 'third']);
  });

  it('goes on after a failure, which only its own caller sees', async () => {
    const key = {};
    const [failed, thrown, next] = await Promise.allSettled([
      inTurn(key, () => Promise.reject(new Error('failed'))),
      inTurn(key, () => {
        throw new Error('thrown');
      }),
      inTurn(key, async () => 'done'),
    ]);
    expect(failed).toMatchObject({ reason: { message: 'failed' } });
    expect(thrown).toMatchObject({ reason: { message: 'thrown' } });
    expect(next).toEqual({ status: 'fulfilled', value: 'done' });
  });
});
