import { expect, it } from 'vitest';
import { deadlocks, jobRows, openWorld } from '../support/world.ts';

const SONGS = 60;
const OPERATOR = { actor: 'an operator', reason: 'looked it up in the ledger' };

/** Everything goes wrong that can, in an order that is the same at each run. */
function faults() {
  return [
    { everyNth: 11, respond: { end: 'reset', charge: true } },
    { everyNth: 7, respond: { status: 502, charge: true } },
    { everyNth: 5, respond: { status: 503 } },
    { everyNth: 13, respond: { status: 429 } },
    { everyNth: 17, respond: { status: 202, body: '' } },
    { everyNth: 19, respond: { status: 401 } },
    { everyNth: 23, respond: { end: 'cut' } },
  ] as const;
}

it('through every fault at once, and with an operator who looks up what was charged, each song is paid for once', async () => {
  const world = await openWorld({
    limits: { requestsPerMinute: 30, maxConcurrentGenerations: 5 },
    operation: { rearmQuarantineMs: 0, breaker: { failureThreshold: 3, cooldownMs: 10_000 } },
    simulator: { runTimeMs: 4_000, script: faults() },
  });
  await world.songs(SONGS);
  const workers = [world.worker(), world.worker(), world.worker()];
  const pollers = [world.poller(), world.poller()];

  for (let round = 0; round < 400; round++) {
    await Promise.all([...workers, ...pollers].map((one) => one.runOnce()));
    const states = Object.values(await world.states());
    if (states.every((state) => state === 'succeeded')) break;
    await world.client.releaseAccount('default', null, OPERATOR);
    const ledger = world.simulator.ledger();
    for (const { id } of await world.client.listAmbiguous()) {
      const { request_key: key } = await world.request(id);
      const [taskId] = ledger.forms.find(({ prompt }) => prompt === key)?.taskIds ?? [];
      const how =
        taskId === undefined
          ? ({ as: 'not_accepted', force: true } as const)
          : ({ as: 'accepted', providerTaskId: taskId } as const);
      await world.client.resolve({ id, ...how, ...OPERATOR });
    }
    await world.passTime(4_000);
  }

  const { totals, forms } = world.simulator.ledger();
  expect(new Set(Object.values(await world.states()))).toEqual(new Set(['succeeded']));
  expect(totals).toMatchObject({ charges: SONGS, chargedTwice: 0 });
  // An answered 5xx gives its slot back, and these were charged all the same: a few run over the limit.
  expect(totals.maxConcurrency).toBeLessThanOrEqual(10);
  expect(forms).toHaveLength(SONGS);
  // What the database says of POSTs and money is what the provider's books say.
  const attempts = await world.database.query(
    `select from onetake.submission_attempts where certainty <> 'unsent'`,
  );
  expect(attempts).toHaveLength(totals.posts);
  const charges = await world.database.query(
    `select from onetake.generation_requests where charge = 'charged'`,
  );
  expect(charges).toHaveLength(SONGS);
  expect((await world.transitions()).length).toBeGreaterThan(2);
  expect(await jobRows(world.database)).toEqual([]);
  expect(world.events.filter(({ name }) => name === 'process:trouble')).toEqual([]);
  expect(await deadlocks(world.database)).toBe(0);
}, 120_000);
