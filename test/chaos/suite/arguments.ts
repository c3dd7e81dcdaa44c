import { parseArgs } from 'node:util';

export const USAGE = `Usage: npm run chaos -- [options]

Runs onetake's own processes against an embedded PostgreSQL and a provider with
a ledger, breaks everything at random, and checks from the outside that nothing
was paid twice and nothing was lost.

Options:
  --minutes M       how long things are broken, 0.25 to 600 (default: 2); the
                    end, where all is healed and has to finish, comes on top
  --seed S          names the plan: 1 to 40 of A-Z a-z 0-9 _ - (default: fresh)
  --orders N        orders a minute, 1 to 2000 (default: 240)
  --keep-going      goes on after a violation and counts them
  --plan            prints the plan of this seed and ends
  --output DIR      where the timeline goes (default: the temporary directory)
  --json            prints one JSON value instead of lines
  --help

Exit code: 0 nothing was violated, 1 something was, 2 wrong options or a suite
that could not run, 130 interrupted.
`;

export interface ChaosOptions {
  readonly minutes: number;
  readonly seed: string;
  readonly ordersPerMinute: number;
  readonly keepGoing: boolean;
  readonly plan: boolean;
  readonly output: string | undefined;
  readonly json: boolean;
}

export type ParsedArguments =
  | { readonly kind: 'help' }
  | { readonly kind: 'wrong'; readonly problems: readonly string[] }
  | { readonly kind: 'run'; readonly options: ChaosOptions };

export function parseArguments(args: readonly string[], freshSeed: () => string): ParsedArguments {
  let values: Record<string, string | boolean | undefined>;
  try {
    ({ values } = parseArgs({
      args: [...args],
      options: {
        minutes: { type: 'string' },
        seed: { type: 'string' },
        orders: { type: 'string' },
        'keep-going': { type: 'boolean' },
        plan: { type: 'boolean' },
        output: { type: 'string' },
        json: { type: 'boolean' },
        help: { type: 'boolean' },
      },
    }));
  } catch (error) {
    return { kind: 'wrong', problems: [(error as Error).message] };
  }
  if (values['help'] === true) return { kind: 'help' };
  const problems: string[] = [];
  const number = (name: string, fallback: number, min: number, max: number): number => {
    const given = values[name];
    if (given === undefined) return fallback;
    const value = /^\d+(\.\d+)?$/.test(String(given)) ? Number(given) : Number.NaN;
    if (!(value >= min && value <= max))
      problems.push(`--${name}: expected a number from ${min} to ${max}, got "${given}"`);
    return value;
  };
  const minutes = number('minutes', 2, 0.25, 600);
  const ordersPerMinute = number('orders', 240, 1, 2_000);
  const seed = values['seed'] === undefined ? freshSeed() : String(values['seed']);
  if (!/^[A-Za-z0-9_-]{1,40}$/.test(seed)) problems.push('--seed: expected 1 to 40 of A-Z a-z 0-9 _ -');
  if (problems.length > 0) return { kind: 'wrong', problems };
  return {
    kind: 'run',
    options: {
      minutes,
      seed,
      ordersPerMinute,
      keepGoing: values['keep-going'] === true,
      plan: values['plan'] === true,
      output: values['output'] as string | undefined,
      json: values['json'] === true,
    },
  };
}
