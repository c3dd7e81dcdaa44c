import { expect, test } from 'vitest';
import { startTestStack } from '../../src/testing.ts';
import { createTestDatabase } from '../support/test-database.ts';

test('an app tests its own code against a whole onetake on loopback', async () => {
  await using database = await createTestDatabase();
  await using stack = await startTestStack({ connectionString: database.connectionString });

  const sent = await stack.client.enqueue({
    operation: 'text-to-music',
    fields: { prompt: 'a harbour at dawn', duration: 5 },
    requestKey: 'stack-1',
  });
  const frozen = await stack.client.enqueue({
    operation: 'text-to-music',
    fields: { prompt: 'a storm [simulate status=502]', duration: 5 },
    requestKey: 'stack-2',
  });

  const failing = await stack.client.enqueue({
    operation: 'text-to-music',
    fields: { prompt: 'a march [simulate fail=CONTENT_POLICY]', duration: 5 },
    requestKey: 'stack-3',
  });

  if (!('id' in sent) || !('id' in frozen) || !('id' in failing)) throw new Error('enqueue was refused');
  const signal = AbortSignal.timeout(20_000);
  const done = await stack.client.waitForGeneration(sent.id, { signal });
  expect(done).toMatchObject({ state: 'succeeded', resultStatus: 'linked', charge: 'charged' });
  expect(done.files).toHaveLength(1);
  expect(await stack.client.waitForGeneration(frozen.id, { signal })).toMatchObject({
    state: 'ambiguous',
    stateReason: 'server_error',
    charge: 'possible',
  });
  expect(await stack.client.waitForGeneration(failing.id, { signal })).toMatchObject({
    state: 'failed',
    failureCode: 'content_policy',
  });
  expect(stack.simulator.ledger().totals).toMatchObject({ posts: 3, chargedTwice: 0 });
});
