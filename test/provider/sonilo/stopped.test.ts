import type { Socket } from 'node:net';
import { join } from 'node:path';
import { expect, test, vi } from 'vitest';
import type { SubmissionOutcome } from '../../../src/core/provider.ts';
import { type Child, startChild } from '../../support/children.ts';
import { waitFor } from '../../support/wait-for.ts';
import { SHORT, submission } from './fixtures.ts';
import { rawServer, response } from './raw-server.ts';
import type { SubmitChildOptions } from './submit-child.ts';

// A process that stands still while its answer arrives: SIGSTOP, a suspended machine, an event loop that is blocked.

vi.setConfig({ testTimeout: 30_000 });

const BODY = '{"task_id":"task-1","status":"processing"}';

function submittingChild(baseUrl: string, more: Pick<SubmitChildOptions, 'promptBytes'> = {}) {
  const { maySend: _, ...plain } = submission({ deadlines: SHORT });
  const options: SubmitChildOptions = { baseUrl, submission: plain, ...more };
  return startChild({
    file: join(import.meta.dirname, 'submit-child.ts'),
    env: { ONETAKE_TEST_SUBMIT: JSON.stringify(options), NODE_TLS_REJECT_UNAUTHORIZED: '0' },
  });
}

const STANDSTILL_MS = SHORT.submissionMs + 1_000;

/** Goes on when all its deadlines are long over. */
async function stop(child: Child): Promise<void> {
  child.process.kill('SIGSTOP');
  const stoppedAt = performance.now();
  await waitFor(() => performance.now() - stoppedAt > STANDSTILL_MS, { what: 'its deadlines' });
  child.process.kill('SIGCONT');
}

const outcomeOf = async (child: Child) =>
  (await child.message<{ outcome: SubmissionOutcome }>((said) => 'outcome' in said, 'its end')).outcome;

/** Stopped when its POST has arrived. */
async function stoppedWhile(answer: (socket: Socket) => void, tls: boolean): Promise<SubmissionOutcome> {
  const { promise: asked, resolve: onRequest } = Promise.withResolvers<Socket>();
  const server = await rawServer({ tls, onRequest });
  await using child = submittingChild(`${tls ? 'https' : 'http'}://localhost:${server.port}`);
  const socket = await asked;
  const going = stop(child);
  answer(socket);
  await going;
  const outcome = await outcomeOf(child);
  await server.stop();
  expect(server.posts).toBe(1);
  return outcome;
}

test.concurrent.each([false, true])(
  'an answer that came in time is read, however late: TLS %s',
  async (tls) => {
    const outcome = await stoppedWhile((socket) => socket.write(response(202, BODY)), tls);
    expect(outcome).toMatchObject({ certainty: 'accepted', evidence: { providerTaskId: 'task-1' } });
  },
);

test('silence stays silence', async () => {
  const outcome = await stoppedWhile(() => undefined, false);
  expect(outcome).toMatchObject({ certainty: 'unknown', evidence: { errorCode: 'first_response_deadline' } });
});

test('an event loop that was blocked finds its overdue deadline first: what waits to be written never leaves', async () => {
  const { promise: begun, resolve } = Promise.withResolvers<Socket>();
  const server = await rawServer({
    onConnection: (socket) => socket.once('data', () => resolve(socket.pause())),
  });
  await using child = submittingChild(`http://127.0.0.1:${server.port}`, { promptBytes: 32 * 2 ** 20 });
  const socket = await begun;
  child.send(STANDSTILL_MS);
  const blockedAt = performance.now();
  await waitFor(() => performance.now() - blockedAt > STANDSTILL_MS / 2, { what: 'it to be blocked' });
  socket.resume();
  // What the kernel has already; the rest is in the child's own queue.
  let [arrived, stableSince] = [-1, 0];
  await waitFor(
    () => {
      if (server.bytes !== arrived) stableSince = performance.now();
      arrived = server.bytes;
      return performance.now() - stableSince > 200;
    },
    { what: 'the kernel to be empty' },
  );
  expect(child.messages).toEqual([]);
  expect(await outcomeOf(child)).toMatchObject({ certainty: 'unknown', evidence: { phase: 'sent' } });
  await server.stop();
  expect({ posts: server.posts, bytes: server.bytes }).toEqual({ posts: 0, bytes: arrived });
});
