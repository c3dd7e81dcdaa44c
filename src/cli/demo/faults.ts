import type { ScriptRule } from '../../simulator/script.ts';

// What the provider does wrong, by the count of POSTs that reach it.

/** The first POST that meets the outage. */
const OUTAGE_BEGINS = 9;
const FOR_EVER = 1_000_000_000;
/** Well past `firstResponseMs` of the demo's configuration. */
const TOO_LATE_MS = 3_600;
const GATEWAY_MS = 120;

/**
 * Healthy at first. Then every POST is answered 502; the first of them was charged before that, the others
 * never got as far.
 */
export const OUTAGE: readonly ScriptRule[] = [
  {
    posts: [OUTAGE_BEGINS, OUTAGE_BEGINS],
    respond: { status: 502, charge: true, delayMs: GATEWAY_MS },
  },
  { posts: [OUTAGE_BEGINS + 1, FOR_EVER], respond: { status: 502, charge: false, delayMs: GATEWAY_MS } },
];

/**
 * The outage lasts for one more POST after `posts`, so that exactly one probe meets it however many were in
 * flight when the breaker opened. Four POSTs after the one that closes the breaker, an answer comes too late.
 */
export function recoveryAfter(posts: number): readonly ScriptRule[] {
  return [
    { posts: [posts + 1, posts + 1], respond: { status: 502, charge: false, delayMs: GATEWAY_MS } },
    { posts: [posts + 6, posts + 6], respond: { delayMs: TOO_LATE_MS, charge: true } },
  ];
}
