import fc from 'fast-check';

// The same search each time, and failing once is enough: nothing is shrunk.
const SEARCH = { numRuns: 5_000, seed: 20_260_818, endOnFailure: true } as const;

/** Whether the search meets a case in which the property says no; a crash of the mutant doesn't count. */
export function foundOut<Values>(property: fc.IProperty<Values>): boolean {
  const { failed, errorInstance } = fc.check(property, SEARCH);
  return failed && String(errorInstance).includes('returning false');
}
