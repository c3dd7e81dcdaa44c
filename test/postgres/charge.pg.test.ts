import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { ago, type Columns, insert, insertAttempt, insertRequest, settledAs } from '../support/fixtures.ts';
import { createTestDatabase, type TestDatabase } from '../support/test-database.ts';

let database: TestDatabase;
beforeAll(async () => {
  database = await createTestDatabase();
});
afterAll(() => database.drop());

interface Story {
  readonly attempt: Columns;
  readonly later?: readonly ('accepted' | 'refused' | 'unsent' | 'unknown')[];
  /** The later word was taken back. */
  readonly withdrawn?: true;
}

const inFlight: Story = { attempt: {} };
const accepted: Story = { attempt: settledAs('accepted') };
const refunded: Story = { attempt: settledAs('accepted', { refunded: true }) };
const notRefunded: Story = { attempt: settledAs('accepted', { refunded: false }) };
const refused: Story = { attempt: settledAs('refused') };
const unsent: Story = { attempt: settledAs('unsent') };
const unknown: Story = { attempt: settledAs('unknown') };
const knownLater = (...later: NonNullable<Story['later']>): Story => ({ ...unknown, later });

const CHARGES: readonly [string, string, readonly Story[]][] = [
  ['none', 'no attempt', []],
  ['none', 'one in flight', [inFlight]],
  ['none', 'one refused', [refused]],
  ['none', 'one unsent', [unsent]],
  ['none', 'one refused and one in flight', [refused, inFlight]],
  ['possible', 'one unknown', [unknown]],
  ['possible', 'an unknown one before a refused one', [unknown, refused]],
  ['possible', 'an unknown one before one in flight', [unknown, inFlight]],
  ['possible', 'an unknown one and a refunded one', [unknown, refunded]],
  ['possible', 'an unknown one that late evidence leaves unknown', [knownLater('unknown')]],
  ['charged', 'one accepted', [accepted]],
  ['charged', 'one accepted and expressly not refunded', [notRefunded]],
  ['charged', 'one accepted, one unknown', [accepted, unknown]],
  ['charged', 'one refunded, one accepted', [refunded, accepted]],
  ['charged', 'an unknown one that turned out accepted', [knownLater('accepted')]],
  ['charged', 'one refused, and an earlier one that turned out accepted', [knownLater('accepted'), refused]],
  ['charged', 'an unsent one that turned out accepted after all', [{ ...unsent, later: ['accepted'] }]],
  ['none', 'an unknown one that turned out refused', [knownLater('refused')]],
  [
    'possible',
    'an unknown one whose acceptance was taken back',
    [{ ...knownLater('accepted'), withdrawn: true }],
  ],
  [
    'possible',
    'an unknown one whose refusal was taken back',
    [{ ...knownLater('refused'), withdrawn: true }],
  ],
  ['charged', 'one that was said to be refused and then accepted', [knownLater('refused', 'accepted')]],
  ['refunded', 'one accepted and refunded', [refunded]],
  ['refunded', 'one refunded and one refused', [refunded, refused]],
  [
    'refunded',
    'an unknown one that turned out accepted and was refunded',
    [{ attempt: settledAs('unknown', { refunded: true }), later: ['accepted'] }],
  ],
];

describe('the charge over all attempts', () => {
  it.each(CHARGES)('is %s for %s', async (charge, _, stories) => {
    const id = await insertRequest(database, { submissions: stories.length });
    for (const [i, story] of stories.entries()) {
      const attemptId = await insertAttempt(database, id, { ...story.attempt, attempt: i + 1 });
      for (const certainty of story.later ?? []) {
        await insert(database, 'attempt_evidence', {
          attempt_id: attemptId,
          seen_at: ago(0),
          source: 'late_answer',
          certainty,
          withdrawn_at: story.withdrawn === true ? ago(0) : null,
        });
      }
    }
    expect(await database.query('select onetake.charge_of($1) as charge', [id])).toEqual([{ charge }]);
  });
});
