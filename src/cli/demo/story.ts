import { setTimeout as wait } from 'node:timers/promises';
import { DemoFailure } from './failure.ts';
import { recoveryAfter } from './faults.ts';
import { type Narrator, progressLines } from './narrator.ts';
import { playOperator } from './operator.ts';
import { putScript, readLedger, readSnapshot, type Snapshot } from './read-facts.ts';
import type { Screen } from './screen.ts';
import { SONGS } from './songs.ts';
import { SLOTS, type Stage } from './stage.ts';

/** What the story found out on its way. */
export interface StoryFacts {
  /** Songs that met the outage before the breaker stopped it, and songs that it kept from it. */
  readonly metOutage: number;
  readonly waitedUntouched: number;
}

const LOOK_MS = 100;
/** Far beyond what the story takes; a story that hangs must end, and say where. */
const STORY_LIMIT_MS = 150_000;
/** New frozen songs after a pass can only come from a slow machine; a few passes settle any. */
const OPERATOR_PASSES = 3;

/** Tells the story on the stage, from the first order to the last file. Throws when `signal` aborts. */
export async function tellStory(
  stage: Stage,
  screen: Screen,
  narrator: Narrator,
  signal: AbortSignal,
): Promise<StoryFacts> {
  const limit = AbortSignal.timeout(STORY_LIMIT_MS);
  const until = async (what: string, fits: (snapshot: Snapshot) => boolean): Promise<Snapshot> => {
    for (;;) {
      const snapshot = await readSnapshot(stage.database);
      screen.status(['', ...progressLines(snapshot, screen)]);
      if (fits(snapshot)) return snapshot;
      if (limit.aborted) throw new DemoFailure(`The demo waited too long for ${what}: ${summary(snapshot)}.`);
      await wait(LOOK_MS, undefined, { signal });
    }
  };

  screen.act('Thirty songs are ordered, and the provider is well');
  narrator.beforeTrouble(() => screen.act('The provider answers 502, and the breaker opens'));
  screen.event('▸', 'cyan', `${SONGS.length} songs go into the queue. ${SLOTS} run at once.`);
  await order(stage, narrator, signal);

  const opened = await until('the breaker to open', (now) => now.transitions > 0 || isThrough(now));
  const facts = await meetOutage(stage, screen, until, signal);
  if (opened.transitions > 0) {
    await until('the breaker to close', ({ breakerState, transitions }) => {
      return (breakerState === 'closed' && transitions > 1) || limit.aborted;
    });
  }
  screen.act('The provider is well again, but one answer comes too late');
  await until('the queue to be through', isThrough);

  for (let pass = 1; pass <= OPERATOR_PASSES; pass += 1) {
    const { states } = await readSnapshot(stage.database);
    const frozen = states.filter(({ state }) => state === 'ambiguous');
    if (frozen.length === 0) break;
    screen.status([]);
    screen.act('The operator');
    screen.say(
      `The queue is through. ${frozen.length} songs are frozen: their POST left, and nobody knows whether it ` +
        'was paid. onetake never guesses, so a person looks, with the CLI (run where the demo keeps its ' +
        'configuration).',
    );
    const cases = frozen.map(({ id }) => ({ id, title: narrator.titleOf(id) }));
    await playOperator(stage, screen, cases, signal);
    await until('the last songs', isThrough);
  }
  screen.status([]);
  return facts;
}

type Until = (what: string, fits: (snapshot: Snapshot) => boolean) => Promise<Snapshot>;

/** In this process, through the library, as an app would. */
async function order({ client }: Stage, narrator: Narrator, signal: AbortSignal): Promise<void> {
  for (const [index, { title, seconds }] of SONGS.entries()) {
    signal.throwIfAborted();
    const result = await client.enqueue({
      operation: 'text-to-music',
      fields: { prompt: title, duration: seconds, output_format: 'wav' },
      requestKey: `demo-${String(index + 1).padStart(2, '0')}`,
    });
    if ('id' in result) narrator.know(result.id, title);
  }
}

/**
 * The breaker is open: what was in flight comes back, and then nothing moves. Only now is it known how many
 * POSTs the outage met, and so after which one it ends.
 */
async function meetOutage(
  stage: Stage,
  screen: Screen,
  until: Until,
  signal: AbortSignal,
): Promise<StoryFacts> {
  const quiet = await until('the POSTs in flight', ({ states }) =>
    states.every(({ state }) => state !== 'submitting'),
  );
  const { totals } = await readLedger(stage.providerUrl, signal);
  await putScript(stage.providerUrl, recoveryAfter(totals.posts), signal);
  const metOutage = quiet.states.filter(({ state }) => state === 'ambiguous').length;
  const waitedUntouched = quiet.states.filter(
    ({ state, submissions }) => state === 'queued' && submissions === 0,
  ).length;
  screen.print('', ...progressLines(quiet, screen), '');
  screen.say(
    `${metOutage} songs met the outage and are frozen: no such answer says whether it was paid. ` +
      `${waitedUntouched} songs wait untouched: no POST, no attempt used, nothing to settle. ` +
      'Accepted songs go on: polling never asks the breaker.',
  );
  screen.print('');
  return { metOutage, waitedUntouched };
}

function isThrough({ states }: Snapshot): boolean {
  return states.every(({ state }) => !['queued', 'submitting', 'accepted'].includes(state));
}

function summary({ states, breakerState }: Snapshot): string {
  const counts = Map.groupBy(states, ({ state }) => state);
  const songs = Array.from(counts, ([state, group]) => `${group.length} ${state}`).join(', ');
  return `${songs}; the breaker is ${breakerState}`;
}
