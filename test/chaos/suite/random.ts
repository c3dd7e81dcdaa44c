import { createHash } from 'node:crypto';

/** Numbers that follow from a name alone: the same seed gives the same run on every machine and Node.js. */
export interface Random {
  /** From 0 up to, not including, 1. */
  next(): number;
  chance(probability: number): boolean;
  /** From `min` up to, not including, `max`. */
  between(min: number, max: number): number;
  /** A whole number from `min` to `max`, both included. */
  integer(min: number, max: number): number;
  pick<T>(from: readonly T[]): T;
  weighted<T extends string>(weights: Readonly<Partial<Record<T, number>>>): T;
  /** The wait for the next of events that come at random, every `mean` on average. */
  gap(mean: number): number;
}

/** A stream of its own for each name, so that one part drawing more does not change what another part draws. */
export function randomOf(...names: readonly (string | number)[]): Random {
  const seed = names.join('/');
  let drawn = 0;
  const next = () => {
    const digest = createHash('sha256').update(`${seed}#${drawn++}`).digest();
    return digest.readUIntBE(0, 6) / 2 ** 48;
  };
  const integer = (min: number, max: number) => min + Math.floor(next() * (max - min + 1));
  return {
    next,
    integer,
    chance: (probability) => next() < probability,
    between: (min, max) => min + next() * (max - min),
    pick: (from) => {
      if (from.length === 0) throw new Error('nothing to pick from');
      return from[integer(0, from.length - 1)] as (typeof from)[number];
    },
    weighted: <T extends string>(weights: Readonly<Partial<Record<T, number>>>) => {
      const entries = Object.entries(weights) as [T, number][];
      let left = next() * entries.reduce((sum, [, weight]) => sum + weight, 0);
      for (const [name, weight] of entries) {
        left -= weight;
        if (left < 0) return name;
      }
      const last = entries.at(-1);
      if (last === undefined) throw new Error('nothing to weigh');
      return last[0];
    },
    gap: (mean) => -Math.log(1 - next()) * mean,
  };
}
