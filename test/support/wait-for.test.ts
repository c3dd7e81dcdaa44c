import { describe, expect, it } from 'vitest';
import { waitFor } from './wait-for.ts';

describe('waitFor', () => {
  it('resolves with the first answer that is not undefined, null or false', async () => {
    const answers = [undefined, null, false, 0];
    expect(await waitFor<number>(() => answers.shift() as number, { what: 'a number' })).toBe(0);
    expect(answers).toEqual([]);
  });

  it('fails with what it waited for and what it saw last', async () => {
    await expect(waitFor(() => false, { what: 'the moon', timeoutMs: 30 })).rejects.toThrow(
      'waited 30 ms for the moon; last seen: false',
    );
  });

  it('fails in time although the fact hangs', async () => {
    const never = () => new Promise<undefined>(() => undefined);
    await expect(waitFor(never, { what: 'an answer', timeoutMs: 30 })).rejects.toThrow(
      'waited 30 ms for an answer',
    );
  });

  it('passes an error of the fact on at once', async () => {
    const broken = () => Promise.reject(new Error('no such table'));
    await expect(waitFor(broken, { what: 'anything' })).rejects.toThrow('no such table');
  });
});
