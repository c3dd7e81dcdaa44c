import { createHash } from 'node:crypto';

/** A stream of numbers that the same text always gives again, and another text never does. */
export interface Random {
  /** 0 inclusive to 1 exclusive. */
  next(): number;
  between(min: number, max: number): number;
  pick<T>(list: readonly [T, ...T[]]): T;
}

/** sfc32, seeded with 128 bits of the text's SHA-256, so that near-equal prompts share nothing. */
export function randomFrom(text: string): Random {
  const seed = createHash('sha256').update(text).digest();
  let a = seed.readInt32LE(0);
  let b = seed.readInt32LE(4);
  let c = seed.readInt32LE(8);
  let counter = seed.readInt32LE(12);
  const next = () => {
    const sum = (((a + b) | 0) + counter) | 0;
    counter = (counter + 1) | 0;
    a = b ^ (b >>> 9);
    b = (c + (c << 3)) | 0;
    c = ((c << 21) | (c >>> 11)) + sum;
    c |= 0;
    return (sum >>> 0) / 4_294_967_296;
  };
  for (let round = 0; round < 12; round += 1) next();
  return {
    next,
    between: (min, max) => min + next() * (max - min),
    pick: (list) => list[Math.floor(next() * list.length)] ?? list[0],
  };
}
