import type { Socket } from 'node:net';
import { join } from 'node:path';
import { expect, test, vi } from 'vitest';
import type { SubmissionOutcome } from '../../../src/core/provider.ts';
import { startChild } from '../../support/children.ts';
import { waitFor } from '../../support/wait-for.ts';
import { SHORT, submission } from './fixtures.ts';
import { rawServer, response } from './raw-server.ts';
import type { SubmitChildOptions } from './submit-child.ts';

// A process that stands still while its answer arrives: SIGSTOP, a suspended machine, an event loop that is blocked.

vi.setConfig({ testTimeout: 30_000 });

const BODY = '{"task_id":"task-1","status":"processing"}';

/** Stopped when its POST has arrived, and going on when all its deadlines are long over. */
async function stoppedWhile(answer: (socket: Socket) => void, tls: boolean): Promise<SubmissionOutcome> {
  const { promise: asked, resolve: onRequest } = Promise.withResolvers<Socket>();
  const server = await rawServer({ tls, onRequest });
  const { maySend: _, ...plain } = submission({ deadlines: SHORT });
  const baseUrl = `${tls ? 'https' : 'http'}://localhost:${server.port}`;
  await using child = startChild({
    file: join(import.meta.dirname, 'submit-child.ts'),
    env: {
      ONETAKE_TEST_SUBMIT: JSON.stringify({ baseUrl, submission: plain } satisfies SubmitChildOptions),
      ...(tls ? { NODE_TLS_REJECT_UNAUTHORIZED: '0' } : {}),
    },
  });
  const socket = await asked;
  child.process.kill('SIGSTOP');
  const stoppedAt = performance.now();
  answer(socket);
  await waitFor(() => performance.now() - stoppedAt > SHORT.submissionMs + 1_000, { what: 'its deadlines' });
  child.process.kill('SIGCONT');
  const { outcome } = await child.message<{ outcome: SubmissionOutcome }>(
    (said) => 'outcome' in said,
    'its end',
  );
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
