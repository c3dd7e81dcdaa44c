/** A process grows into its plateau first; shorter lives say nothing. */
const SHORTEST_MS = 150_000;
const ALLOWED_GROWTH = 0.25;
const ALLOWED_GROWTH_MB = 40;

export interface MemoryUse {
  readonly name: string;
  /** Medians: of the second quarter of its life, and of the last. */
  readonly plateauMb: number;
  readonly lastMb: number;
  readonly isFlat: boolean;
  readonly livedMs: number;
}

/** `samples` are of one process that was never restarted. Undefined when it lived too short to say. */
export function memoryUse(
  name: string,
  samples: readonly { readonly at: number; readonly rssMb: number }[],
): MemoryUse | undefined {
  const [first, last] = [samples[0], samples.at(-1)];
  if (first === undefined || last === undefined) return undefined;
  const livedMs = last.at - first.at;
  if (livedMs < SHORTEST_MS) return undefined;
  const part = (from: number, to: number) =>
    median(
      samples
        .filter(({ at }) => at >= first.at + from * livedMs && at <= first.at + to * livedMs)
        .map(({ rssMb }) => rssMb),
    );
  const [plateauMb, lastMb] = [part(0.25, 0.5), part(0.75, 1)];
  const isFlat = lastMb <= plateauMb * (1 + ALLOWED_GROWTH) || lastMb <= plateauMb + ALLOWED_GROWTH_MB;
  return { name, plateauMb, lastMb, isFlat, livedMs };
}

function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)] ?? 0;
}
