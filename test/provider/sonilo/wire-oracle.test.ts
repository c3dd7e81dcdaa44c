import { channel } from 'node:diagnostics_channel';
import type { Socket } from 'node:net';
import { Agent, Client, type Dispatcher, interceptors, RetryAgent } from 'undici';
import { describe, expect, onTestFinished, test, vi } from 'vitest';
import type { Submission, SubmissionOutcome } from '../../../src/core/provider.ts';
import { parseBaseUrl } from '../../../src/provider/sonilo/base-url.ts';
import type { OpenClient } from '../../../src/provider/sonilo/post.ts';
import { type ProvenOracle, provenOracle } from '../../../src/provider/sonilo/proven-oracle.ts';
import { submitOnce } from '../../../src/provider/sonilo/submit.ts';
import { SEND_HEADERS } from '../../../src/provider/sonilo/wire-oracle.ts';
import { SELF_SIGNED_CERTIFICATE } from '../../support/self-signed-certificate.ts';
import { unusedPort } from '../../support/unused-port.ts';
import { waitFor } from '../../support/wait-for.ts';
import { BROKEN_CHANNELS } from './broken-channel.ts';
import { submission, TRANSPORT, UNSENT, UNSENT_OWN_DOING } from './fixtures.ts';
import { type RawBehaviour, type RawServer, rawServer, response } from './raw-server.ts';

// Deadlines are waited for, on machines on which much else runs.
vi.setConfig({ testTimeout: 30_000 });

const ACCEPT: RawBehaviour = {
  onRequest: (socket) => socket.write(response(202, '{"task_id":"task-1","status":"processing"}')),
};
const ACCEPTED = { certainty: 'accepted', reason: 'task_accepted' };

/** A process's oracle; its subscription ends with the test. */
function oracle(): ProvenOracle {
  const proven = provenOracle();
  onTestFinished(() => proven.oracle.close());
  return proven;
}

interface Case {
  readonly proven?: ProvenOracle;
  readonly open?: OpenClient;
  readonly secure?: boolean;
  readonly changes?: Partial<Submission>;
}

async function submitTo(
  behaviour: RawBehaviour,
  { proven = oracle(), open, secure = false, changes }: Case = {},
): Promise<{ outcome: SubmissionOutcome; server: RawServer }> {
  const server = await rawServer(behaviour);
  const base = parseBaseUrl(`${secure ? 'https://localhost' : 'http://127.0.0.1'}:${server.port}`, false);
  const outcome = await submitOnce(base, submission(changes), proven, open);
  await server.stop();
  return { outcome, server };
}

const sent = (headersSent: boolean | null, headersSentProof: string | null) => ({
  evidence: { headersSent, headersSentProof },
});

describe('a process whose channel is not what we know', () => {
  describe.each(Object.keys(BROKEN_CHANNELS) as (keyof typeof BROKEN_CHANNELS)[])('it %s', (how) => {
    test('submits, and reads answers as ever', async () => {
      BROKEN_CHANNELS[how]();
      const { outcome, server } = await submitTo(ACCEPT);
      expect(outcome).toMatchObject({ ...ACCEPTED, alert: false, ...sent(true, 'answer') });
      expect(server.posts).toBe(1);
    });

    test('a refused connection is unsent by its code', async () => {
      BROKEN_CHANNELS[how]();
      const base = parseBaseUrl(`http://127.0.0.1:${await unusedPort()}`, false);
      const outcome = await submitOnce(base, submission(), oracle());
      expect(outcome).toMatchObject({ ...UNSENT, ...sent(false, 'error_code') });
    });

    test('what only the oracle could prove is unknown', async () => {
      BROKEN_CHANNELS[how]();
      const { outcome, server } = await submitTo(
        { onConnection: (socket) => socket.once('data', () => socket.resetAndDestroy()) },
        { secure: true },
      );
      expect(outcome).toMatchObject({ ...TRANSPORT, ...sent(null, null) });
      expect(outcome.evidence).toMatchObject({ phase: 'sent', errorCode: 'ECONNRESET' });
      expect(server.posts).toBe(0);
    });

    test('a POST that was read and not answered is unknown', async () => {
      BROKEN_CHANNELS[how]();
      const { outcome, server } = await submitTo({ onRequest: (socket) => socket.destroy() });
      expect(outcome).toMatchObject({ ...TRANSPORT, ...sent(null, null) });
      expect(server.posts).toBe(1);
    });

    test('the gate before the connection is handed over still holds', async () => {
      BROKEN_CHANNELS[how]();
      let asked = 0;
      const { outcome, server } = await submitTo(ACCEPT, { changes: { maySend: () => ++asked <= 1 } });
      expect(outcome).toMatchObject({ ...UNSENT_OWN_DOING, ...sent(false, 'kept_back') });
      expect(server.bytes).toBe(0);
    });
  });
});

test('a test that could not run leaves codes as the only proof, though the channel is well', async () => {
  const proven = provenOracle(undefined, async () => ({ wireOracle: 'untested', errorCode: null }));
  onTestFinished(() => proven.oracle.close());
  const cut = await submitTo(
    { onConnection: (socket) => socket.once('data', () => socket.resetAndDestroy()) },
    { secure: true, proven },
  );
  expect(cut.outcome).toMatchObject({ ...TRANSPORT, ...sent(null, null) });
  let asked = 0;
  const gate = await submitTo(ACCEPT, { proven, changes: { maySend: () => ++asked <= 2 } });
  expect(gate.outcome).toMatchObject({ ...TRANSPORT, ...sent(null, null) });
  expect(gate.server.bytes).toBe(0);
  const answered = await submitTo(ACCEPT, { proven });
  expect(answered.outcome).toMatchObject({ ...ACCEPTED, ...sent(true, 'oracle') });
});

describe('a channel that falls silent after it was found healthy', () => {
  test.each<[string, RawBehaviour, object]>([
    ['an answer', ACCEPT, { ...ACCEPTED, ...sent(true, 'answer') }],
    ['a reset', { onRequest: (socket) => socket.resetAndDestroy() }, { ...TRANSPORT, ...sent(null, null) }],
    ['a close', { onRequest: (socket) => socket.end() }, { ...TRANSPORT, ...sent(null, null) }],
  ])('never turns a POST that went out into an unsent one: %s', async (_title, behaviour, expected) => {
    for (const secure of [false, true]) {
      const proven = oracle();
      expect(await proven.prove()).toMatchObject({ wireOracle: 'healthy' });
      BROKEN_CHANNELS['has no subscribers, it says']();
      const open: OpenClient = (post, socket) =>
        new Client(post.origin, {
          connect: secure ? { ca: SELF_SIGNED_CERTIFICATE } : socket.connector,
          pipelining: 0,
        });
      // The connection over TLS is not ours then, so that nothing but the answer tells of it.
      if (secure && behaviour !== ACCEPT) continue;
      const { outcome, server } = await submitTo({ ...behaviour, tls: secure }, { proven, secure, open });
      expect(outcome).toMatchObject(expected);
      expect(server.posts).toBe(1);
      expect(await proven.prove()).toMatchObject({ wireOracle: 'silent' });
      delete (channel(SEND_HEADERS) as { hasSubscribers?: unknown }).hasSubscribers;
    }
  });

  test('is no proof for the next one either', async () => {
    const proven = oracle();
    await proven.prove();
    BROKEN_CHANNELS['publishes nothing']();
    await submitTo(ACCEPT, { proven });
    const { outcome } = await submitTo(
      { onConnection: (socket) => socket.once('data', () => socket.resetAndDestroy()) },
      { proven, secure: true },
    );
    expect(outcome).toMatchObject({ ...TRANSPORT, ...sent(null, null) });
  });
});

test('a notice that can’t be read, while a POST is under way, proves nothing of that POST', async () => {
  const proven = oracle();
  await proven.prove();
  const { outcome } = await submitTo(
    {
      onConnection: (socket) =>
        socket.once('data', () => {
          channel(SEND_HEADERS).publish({ shape: 'of another release' });
          socket.resetAndDestroy();
        }),
    },
    { proven, secure: true },
  );
  expect(outcome).toMatchObject({ ...TRANSPORT, ...sent(null, null) });
  expect(await proven.prove()).toMatchObject({ wireOracle: 'healthy' });
});

test('hundreds at once are told apart', async () => {
  const proven = oracle();
  const server = await rawServer({
    onRequest: (socket, { body }) => {
      const number = Number(new URLSearchParams(body).get('prompt'));
      if (number % 3 === 0) socket.resetAndDestroy();
      else socket.write(response(202, JSON.stringify({ task_id: `task-${number}` })));
    },
  });
  const port = await unusedPort();
  const outcomes = await Promise.all(
    Array.from({ length: 300 }, (_, n) => {
      const base = parseBaseUrl(`http://127.0.0.1:${n % 3 === 1 ? port : server.port}`, false);
      const { fields } = submission();
      return submitOnce(base, submission({ fields: { ...fields, prompt: `${n}` } }), proven);
    }),
  );
  await server.stop();
  for (const [n, outcome] of outcomes.entries()) {
    const expected = [
      { ...TRANSPORT, ...sent(true, 'oracle') },
      { ...UNSENT, ...sent(false, 'oracle') },
      { ...ACCEPTED, evidence: { providerTaskId: `task-${n}`, headersSent: true } },
    ][n % 3];
    expect(outcome).toMatchObject(expected ?? {});
  }
  expect(server.posts).toBe(200);
});

describe('a client below us that sends a POST again', () => {
  /** Connections of its own, as many as it likes: the fresh socket would refuse the second. */
  const plain = (origin: string) => new Client(origin, { pipelining: 1 });
  const dispatching = (dispatch: Dispatcher['dispatch'], client: Dispatcher): Dispatcher =>
    ({ dispatch, destroy: () => client.destroy() }) as unknown as Dispatcher;
  const QUIET: Dispatcher.DispatchHandler = {
    onRequestStart: () => undefined,
    onResponseStart: () => undefined,
    onResponseData: () => undefined,
    onResponseEnd: () => undefined,
    onResponseError: () => undefined,
  };
  const TWICE: Record<string, OpenClient> = {
    'dispatches twice on one connection': ({ origin }) => {
      const client = new Client(origin, { pipelining: 2 });
      return dispatching((options, handler) => {
        const pipelined = { ...options, reset: false, idempotent: true };
        client.dispatch(pipelined, handler);
        return client.dispatch(pipelined, QUIET);
      }, client);
    },
    'dispatches twice on two connections': ({ origin }) => {
      const agent = new Agent({ connections: 2, pipelining: 1 });
      return dispatching((options, handler) => {
        agent.dispatch({ ...options, origin }, handler);
        return agent.dispatch({ ...options, origin }, QUIET);
      }, agent);
    },
    'retries a POST': ({ origin }) => {
      const client = plain(origin);
      return client.compose(
        interceptors.retry({ methods: ['POST'], minTimeout: 1, maxTimeout: 1, statusCodes: [502, 429] }),
      );
    },
    'is a RetryAgent': ({ origin }) => {
      const agent = new RetryAgent(new Agent(), {
        methods: ['POST'],
        minTimeout: 1,
        statusCodes: [502, 429],
      });
      return dispatching((options, handler) => agent.dispatch({ ...options, origin }, handler), agent);
    },
    'follows redirects': ({ origin }) => plain(origin).compose(interceptors.redirect({ maxRedirections: 3 })),
  };
  const FAULTS: Record<string, RawBehaviour> = {
    'a reset': { onRequest: (socket) => socket.resetAndDestroy() },
    'a close': { onRequest: (socket) => socket.end() },
    'a 502': { onRequest: (socket) => socket.write(response(502)) },
    'a 429': { onRequest: (socket) => socket.write(response(429)) },
    'a 307': {
      onRequest: (socket) => socket.write(response(307, '', [['location', '/v1/text-to-music']])),
    },
    'a 308': {
      onRequest: (socket) => socket.write(response(308, '', [['location', '/v1/text-to-music']])),
    },
  };

  test.each(
    Object.keys(TWICE).flatMap((client) => Object.keys(FAULTS).map((fault) => [client, fault] as const)),
  )('%s after %s: the provider sees one POST', async (client, fault) => {
    const proven = oracle();
    await proven.prove();
    const { outcome, server } = await submitTo(FAULTS[fault] as RawBehaviour, {
      proven,
      open: TWICE[client] as OpenClient,
    });
    expect(server.posts).toBe(1);
    expect(outcome.certainty).not.toBe('accepted');
    // Nothing of a POST that something tried to send again is refused or unsent: it waits for a person.
    if (outcome.evidence.repeatedSend === true) {
      expect(outcome).toMatchObject({ certainty: 'unknown', reason: 'repeated_send', alert: true });
    }
  });

  test.each(['dispatches twice on one connection', 'dispatches twice on two connections'])(
    '%s: it is an alarm, and what was accepted stays accepted',
    async (client) => {
      const late: Socket[] = [];
      const { outcome, server } = await submitTo(
        {
          onRequest: (socket) => {
            late.push(socket);
            setTimeout(() => socket.write(response(202, '{"task_id":"task-1"}')), 50);
          },
        },
        { open: TWICE[client] as OpenClient },
      );
      expect(server.posts).toBe(1);
      expect(outcome.evidence).toMatchObject({ repeatedSend: true, headersSent: true });
      expect(outcome).toMatchObject(
        outcome.certainty === 'accepted'
          ? { reason: 'task_accepted', alert: true, evidence: { providerTaskId: 'task-1' } }
          : { certainty: 'unknown', reason: 'repeated_send', alert: true },
      );
    },
  );

  test('retries a POST after a reset: it is an alarm', async () => {
    const { outcome, server } = await submitTo(FAULTS['a reset'] as RawBehaviour, {
      open: TWICE['retries a POST'] as OpenClient,
    });
    expect(outcome).toMatchObject({
      certainty: 'unknown',
      reason: 'repeated_send',
      alert: true,
      evidence: { repeatedSend: true, headersSent: true },
    });
    expect(server.posts).toBe(1);
  });

  test('long after its end: the second never leaves, and the oracle of such a client is not trusted', async () => {
    const proven = oracle();
    const server = await rawServer(ACCEPT);
    const again: (() => void)[] = [];
    const clients: Dispatcher[] = [];
    const open: OpenClient = ({ origin }) => {
      const client = plain(origin);
      clients.push(client);
      return {
        dispatch: (options: Dispatcher.DispatchOptions, handler: Dispatcher.DispatchHandler) => {
          again.push(() => client.dispatch(options, QUIET));
          return client.dispatch(options, handler);
        },
        destroy: async () => undefined,
      } as unknown as Dispatcher;
    };
    const base = parseBaseUrl(`http://127.0.0.1:${server.port}`, false);
    expect(await submitOnce(base, submission(), proven, open)).toMatchObject(ACCEPTED);
    for (const dispatch of again) dispatch();
    await waitFor(() => proven.oracle.lateSends > 0, { what: 'the second to be stopped' });
    expect(await proven.prove()).toEqual({ wireOracle: 'unknown_shape', errorCode: 'repeated_send' });
    await Promise.all(clients.map((client) => client.destroy()));
    await server.stop();
    expect(server.posts).toBe(1);
  });
});
