import { describe, expect, it } from 'vitest';
import { admit } from '../../src/lifecycle/admit.ts';
import { rescue } from '../../src/lifecycle/rescue.ts';
import { OPERATOR } from '../support/attempts.ts';
import { databaseTimePasses, type FleetWorker, senderOf, startFleet } from '../support/fleet.ts';
import { laneOf } from '../support/lifecycle-context.ts';
import { acceptedAs, refusedWith } from '../support/outcomes.ts';
import { hold, type ProviderCall } from '../support/raw-provider.ts';
import { openSpoolWorld } from '../support/spool-world.ts';
import { waitFor } from '../support/wait-for.ts';
import { LEASE_MS, openWorld, type World } from '../support/world.ts';

const SONGS = 5;

/** A POST that the test holds is answered by the test, however slow the machine is. */
const PATIENT = {
  deadlines: { connectMs: 4_000, firstResponseMs: 100_000, submissionMs: 110_000 },
  leaseMs: 120_000,
};

const isVideo = (call: ProviderCall) => call.path.includes('video');

/** Three worker processes, and both operations held by the answers that they got, with work waiting in each. */
async function heldFleet(): Promise<{ world: World; fleet: FleetWorker[]; refused: number }> {
  const world = await openWorld({ provider: 'raw', operation: PATIENT });
  world.raw.onPost = (call) => call.answer(403, { code: 'forbidden' });
  await world.songs(SONGS);
  for (let n = 0; n < 3; n++) await world.song(`video ${n}`, { operation: 'video-to-music' });
  const fleet = await startFleet(world, 3);
  await waitFor(
    async () => {
      const [row] = await world.database.query<{ held: number; open: number }>(
        `select (select count(*) from onetake.account_holds where ended_at is null)::int as held,
  (select count(*) from onetake.submission_attempts where settled_at is null)::int as open`,
      );
      return row?.held === 2 && row.open === 0;
    },
    { what: 'both operations to be held' },
  );
  world.raw.onPost = hold;
  return { world, fleet, refused: world.posts() };
}

describe('a release while three processes wait', () => {
  it('lets one request go first, alone, past a SIGKILL on the wire and the release of another operation', async () => {
    const { world, fleet, refused } = await heldFleet();
    const { client, raw } = world;
    await client.releaseAccount('default', 'text-to-music', OPERATOR);
    const first = await raw.post(refused + 1);
    await databaseTimePasses(world);
    expect(world.posts()).toBe(refused + 1);
    expect(await client.listAccounts()).toMatchObject([
      { trials: [{ operation: 'text-to-music', inFlight: 1, waiting: SONGS - 1 }] },
    ]);

    // Its process dies with the POST on the wire: nobody goes before its lease is over, and then one.
    await fleet.find(({ name }) => name === senderOf(first))?.child.kill('SIGKILL');
    await world.passTime(PATIENT.leaseMs + 1);
    const second = await raw.post(refused + 2);
    expect(senderOf(second)).not.toBe(senderOf(first));

    // The other operation has a first of its own, and changes nothing for this one.
    await client.releaseAccount('default', 'video-to-music', OPERATOR);
    const other = await raw.post(refused + 3);
    await databaseTimePasses(world);
    expect(world.posts()).toBe(refused + 3);
    expect([second, other].map(isVideo)).toEqual([false, true]);

    raw.onPost = (call) => (isVideo(call) ? hold() : call.accept());
    second.accept();
    const songs = async (state: string) =>
      Object.entries(await world.states()).filter(([key, is]) => key.startsWith('song') && is === state)
        .length;
    await waitFor(async () => (await songs('accepted')) === SONGS - 1, { what: 'the other songs to follow' });
    expect(await songs('ambiguous')).toBe(1);
    expect(raw.posts.slice(refused).filter(isVideo)).toHaveLength(1);

    raw.onPost = (call) => call.accept();
    other.accept();
    const open = ['queued', 'submitting'];
    await waitFor(async () => !Object.values(await world.states()).some((state) => open.includes(state)), {
      what: 'everything to be sent and answered',
    });
    expect(raw.posts.slice(refused).filter(isVideo)).toHaveLength(3);
    expect(await client.listAccounts()).toMatchObject([{ holds: [], trials: [] }]);
  }, 120_000);
});

describe('the outcome of the one that went first, spooled and replayed later', () => {
  async function trial() {
    const world = await openSpoolWorld();
    await world.songs(6);
    const refused = await world.admitted();
    await world.leaves(refused, refusedWith(401));
    await world.replay();
    await world.client.releaseAccount('default', null, OPERATOR);
    const first = await world.admitted();
    const next = async () => admit(world.ctx, await laneOf(world.ctx), { wanted: 3 });
    expect(await next()).toMatchObject({ blockedBy: 'trial' });
    return { world, first, next };
  }

  it('lets the rest follow an acceptance, and none a refusal', async () => {
    const accepted = await trial();
    await accepted.world.leaves(accepted.first, acceptedAs('a-task'));
    expect(await accepted.world.replay()).toBe(1);
    expect(await accepted.next()).toMatchObject({ attempts: { length: 3 } });

    const refused = await trial();
    await refused.world.leaves(refused.first, refusedWith(401));
    expect(await refused.world.replay()).toBe(1);
    expect(await refused.next()).toMatchObject({ blockedBy: 'held' });
  });

  it('proves nothing once its lease is over: the next goes alone', async () => {
    const { world, first, next } = await trial();
    await world.leaves(first, acceptedAs('a-task'));
    await world.passTime(LEASE_MS + 1);
    await rescue(world.ctx);
    expect(await next()).toMatchObject({ attempts: { length: 1 } });
    await world.replay();
    expect(await world.request(first.requestId)).toMatchObject({ state: 'accepted', charge: 'charged' });
    expect(await next()).toMatchObject({ blockedBy: 'trial' });
  });
});
