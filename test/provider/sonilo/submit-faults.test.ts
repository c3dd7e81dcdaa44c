import tls from 'node:tls';
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';
import { SELF_SIGNED_CERTIFICATE } from '../../support/self-signed-certificate.ts';
import { unusedPort } from '../../support/unused-port.ts';
import {
  noStatus,
  SHORT,
  submitAt,
  submitTo,
  TRANSPORT,
  UNSENT,
  UNSENT_OWN_DOING,
  WITHOUT_TASK_ID,
} from './fixtures.ts';
import { flood, rawServer, response } from './raw-server.ts';

// Deadlines are waited for, on machines on which much else runs.
vi.setConfig({ testTimeout: 30_000 });

describe('before the first byte', () => {
  test('a refused connection is unsent', async () => {
    const outcome = await submitAt(`http://127.0.0.1:${await unusedPort()}`);
    expect(outcome).toEqual({ ...UNSENT, evidence: noStatus('unsent', 'ECONNREFUSED') });
  });

  test('every address of a name refused is unsent', async () => {
    const outcome = await submitAt(`http://localhost:${await unusedPort()}`);
    expect(outcome).toEqual({ ...UNSENT, evidence: noStatus('unsent', 'ECONNREFUSED') });
  });

  test('a name that does not exist is unsent', async () => {
    const outcome = await submitAt('https://nonexistent.invalid');
    expect(outcome).toEqual({
      ...UNSENT,
      evidence: noStatus('unsent', expect.stringMatching(/^(ENOTFOUND|EAI_AGAIN)$/)),
    });
  });

  test('a TLS handshake that hangs is unsent by the connect deadline', async () => {
    const silent = await rawServer({});
    const hanging = await submitAt(`https://127.0.0.1:${silent.port}`, {
      deadlines: { connectMs: 100, firstResponseMs: 6_000, submissionMs: 9_000 },
    });
    await silent.stop();
    expect(hanging).toEqual({ ...UNSENT, evidence: noStatus('unsent', 'connect_deadline') });
    expect(silent.requests).toEqual([]);
  });

  test('our first-response deadline while connecting is unsent, and ends the connection', async () => {
    const silent = await rawServer({});
    const outcome = await submitAt(`https://127.0.0.1:${silent.port}`, {
      deadlines: { connectMs: 8_000, firstResponseMs: 150, submissionMs: 9_000 },
    });
    await silent.stop();
    expect(outcome).toEqual({ ...UNSENT, evidence: noStatus('unsent', 'first_response_deadline') });
    expect(silent.requests).toEqual([]);
  });

  test('a self-signed certificate is unsent', async () => {
    const { outcome, server } = await submitTo({ tls: true });
    expect(outcome).toEqual({ ...UNSENT, evidence: noStatus('unsent', 'DEPTH_ZERO_SELF_SIGNED_CERT') });
    expect(server.bytes).toBe(0);
  });

  test('a reset right after the accept is what the wire showed, never what its code says', async () => {
    const { outcome, server } = await submitTo({ onConnection: (socket) => socket.resetAndDestroy() });
    const { headersSent, headersSentProof, phase, closed } = outcome.evidence;
    expect(['ECONNRESET', 'EPIPE', 'UND_ERR_SOCKET']).toContain(outcome.evidence.errorCode);
    // The kernel decides whether our connect or its reset is first.
    expect({ headersSent, headersSentProof, phase, closed }).toEqual({
      headersSent: outcome.certainty === 'unknown',
      headersSentProof: 'oracle',
      phase: outcome.certainty === 'unsent' ? 'unsent' : 'sent',
      closed: true,
    });
    expect(server.posts).toBe(0);
  });

  test('a TLS handshake cut by a reset carries ECONNRESET, and is unsent by the oracle alone', async () => {
    const server = await rawServer({
      onConnection: (socket) => socket.once('data', () => socket.resetAndDestroy()),
    });
    const outcome = await submitAt(`https://127.0.0.1:${server.port}`);
    await server.stop();
    expect(outcome).toEqual({ ...UNSENT, evidence: noStatus('unsent', 'ECONNRESET') });
    expect(server.posts).toBe(0);
  });

  test('TLS to a plain port is unsent', async () => {
    const server = await rawServer({
      onConnection: (socket) => socket.end('HTTP/1.1 400 Bad Request\r\n\r\n'),
    });
    const outcome = await submitAt(`https://127.0.0.1:${server.port}`);
    await server.stop();
    expect(outcome).toMatchObject({
      ...UNSENT,
      evidence: { headersSent: false, headersSentProof: 'oracle' },
    });
    expect(server.posts).toBe(0);
  });

  test('an argument that undici refuses is unsent by our own doing', async () => {
    const { outcome, server } = await submitTo({}, { apiKey: 'sk_line\nbreak' });
    expect(outcome).toEqual({
      ...UNSENT_OWN_DOING,
      evidence: noStatus('unsent', 'UND_ERR_INVALID_ARG'),
    });
    expect(server.connections).toBe(0);
  });

  test('a blank key and an unknown operation are unsent by our own doing', async () => {
    const blank = await submitTo({}, { apiKey: ' ' });
    expect(blank.outcome).toEqual({
      ...UNSENT_OWN_DOING,
      evidence: noStatus('unsent', 'missing_api_key', 'kept_back'),
    });
    const unknown = await submitTo({}, { operation: 'text-to-smell' });
    expect(unknown.outcome).toEqual({
      ...UNSENT_OWN_DOING,
      evidence: noStatus('unsent', 'unknown_operation', 'kept_back'),
    });
    expect(blank.server.connections + unknown.server.connections).toBe(0);
  });
});

describe('after the first byte', () => {
  test.each([
    ['a reset after the request was read', 'ECONNRESET', 'reset'],
    ['a close after the request was read', 'UND_ERR_SOCKET', 'close'],
  ] as const)('%s is unknown', async (_title, code, how) => {
    const { outcome, server } = await submitTo({
      onRequest: (socket) => (how === 'reset' ? socket.resetAndDestroy() : socket.end()),
    });
    expect(outcome).toEqual({ ...TRANSPORT, evidence: noStatus('sent', code) });
    expect(server.posts).toBe(1);
  });

  test('silence is unknown at the first-response deadline, and the connection is reset', async () => {
    let ending: unknown;
    const { outcome, server } = await submitTo(
      {
        onConnection: (socket) =>
          socket.on('error', (error) => {
            ending = error;
          }),
      },
      { deadlines: SHORT },
    );
    expect(outcome).toEqual({ ...TRANSPORT, evidence: noStatus('sent', 'first_response_deadline') });
    expect(server.posts).toBe(1);
    expect(ending).toMatchObject({ code: 'ECONNRESET' });
  });

  test('endless informational responses end at the first-response deadline', async () => {
    const { outcome, server } = await submitTo(
      { onRequest: (socket) => flood(socket, 'HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n'.repeat(20)) },
      { deadlines: SHORT },
    );
    expect(outcome).toEqual({ ...TRANSPORT, evidence: noStatus('sent', 'first_response_deadline') });
    expect(server.posts).toBe(1);
  });

  test.each([
    ['bytes that are not HTTP', 'SSH-2.0-OpenSSH_9.9\r\n\r\n', 'HTTPParserError'],
    ['100 Continue nobody asked for', 'HTTP/1.1 100 Continue\r\n\r\n', 'UND_ERR_SOCKET'],
    [
      'an upgrade nobody asked for',
      'HTTP/1.1 101 X\r\nupgrade: y\r\nconnection: upgrade\r\n\r\n',
      'UND_ERR_SOCKET',
    ],
    ['headers without an end', `HTTP/1.1 202 X\r\nx: ${'y'.repeat(20_000)}`, 'UND_ERR_HEADERS_OVERFLOW'],
  ])('%s is unknown', async (_title, bytes, code) => {
    const { outcome, server } = await submitTo({ onRequest: (socket) => socket.write(bytes) });
    expect(outcome).toEqual({ ...TRANSPORT, evidence: noStatus('sent', code) });
    expect(server.posts).toBe(1);
  });

  test('bytes sent before the request do not make it go out twice', async () => {
    const { outcome, server } = await submitTo({
      onConnection: (socket) => socket.write(response(202, '{"task_id":"not-an-answer"}')),
    });
    expect(server.posts).toBeLessThanOrEqual(1);
    expect(server.connections).toBe(1);
    expect(['accepted', 'unknown']).toContain(outcome.certainty);
  });
});

describe('a response that does not arrive whole', () => {
  const started = (status: number, errorCode: string | null) => ({
    phase: 'response_started',
    headersSent: true,
    headersSentProof: 'oracle',
    httpStatus: status,
    errorCode,
    providerTaskId: null,
    responseAgeMs: expect.any(Number),
    closed: true,
  });

  test('202 cut in the middle of its JSON has no task id', async () => {
    const { outcome, server } = await submitTo({
      onRequest: (socket) => socket.end('HTTP/1.1 202 X\r\ncontent-length: 60\r\n\r\n{"task_id":"task-1'),
    });
    expect(outcome).toEqual({ ...WITHOUT_TASK_ID, evidence: started(202, 'UND_ERR_SOCKET') });
    expect(server.posts).toBe(1);
  });

  test('202 that promised more bytes than came has no task id, though its JSON looks whole', async () => {
    const { outcome, server } = await submitTo({
      onRequest: (socket) => socket.end('HTTP/1.1 202 X\r\ncontent-length: 60\r\n\r\n{"task_id":"task-1"}'),
    });
    expect(outcome).toEqual({ ...WITHOUT_TASK_ID, evidence: started(202, 'UND_ERR_SOCKET') });
    expect(server.posts).toBe(1);
  });

  test('202 whose body stalls or drips ends at the submission deadline', async () => {
    const head = 'HTTP/1.1 202 X\r\ncontent-length: 100000\r\n\r\n';
    const stalled = await submitTo({ onRequest: (socket) => socket.write(head) }, { deadlines: SHORT });
    expect(stalled.outcome).toEqual({ ...WITHOUT_TASK_ID, evidence: started(202, 'submission_deadline') });
    const dripping = await submitTo(
      {
        onRequest: (socket) => {
          socket.write('HTTP/1.1 202 X\r\ntransfer-encoding: chunked\r\n\r\n');
          flood(socket, '1\r\n \r\n');
        },
      },
      { deadlines: SHORT },
    );
    expect(dripping.outcome).toEqual({ ...WITHOUT_TASK_ID, evidence: started(202, 'submission_deadline') });
    expect([stalled.server.posts, dripping.server.posts]).toEqual([1, 1]);
  });

  test('an error status keeps its class when its body is cut', async () => {
    const cut = (status: number) =>
      submitTo({
        onRequest: (socket) => socket.end(`HTTP/1.1 ${status} X\r\ncontent-length: 60\r\n\r\n{"co`),
      });
    const refused = await cut(422);
    expect(refused.outcome).toMatchObject({ certainty: 'refused', reason: 'request_refused' });
    expect(refused.outcome.evidence).toEqual(started(422, 'UND_ERR_SOCKET'));
    const failed = await cut(502);
    expect(failed.outcome).toMatchObject({ certainty: 'unknown', reason: 'server_error' });
    expect(failed.outcome.evidence).toEqual(started(502, 'UND_ERR_SOCKET'));
  });

  test('an endless body is read up to the cap and keeps its status', async () => {
    const endless = (status: number) =>
      submitTo({
        onRequest: (socket) => {
          socket.write(
            `HTTP/1.1 ${status} X\r\ncontent-type: application/json\r\n\r\n{"task_id":"task-1","x":"`,
          );
          flood(socket, 'y'.repeat(16_384));
        },
      });
    const accepted = await endless(202);
    expect(accepted.outcome).toEqual({
      ...WITHOUT_TASK_ID,
      evidence: { ...started(202, 'answer_too_large'), phase: 'answered' },
    });
    const refused = await endless(400);
    expect(refused.outcome).toMatchObject({ certainty: 'refused', reason: 'request_refused' });
    expect([accepted.server.posts, refused.server.posts]).toEqual([1, 1]);
  });
});

describe('over TLS', () => {
  const defaults = tls.getCACertificates('default');
  beforeAll(() => tls.setDefaultCACertificates([...defaults, SELF_SIGNED_CERTIFICATE]));
  afterAll(() => tls.setDefaultCACertificates(defaults));

  test('an answer is read', async () => {
    const { outcome, server } = await submitTo({
      tls: true,
      onRequest: (socket) => socket.write(response(202, '{"task_id":"task-1","status":"processing"}')),
    });
    expect(outcome).toMatchObject({
      certainty: 'accepted',
      evidence: { providerTaskId: 'task-1', closed: true },
    });
    expect(server.posts).toBe(1);
  });

  test('a close after the request was read is unknown', async () => {
    const { outcome, server } = await submitTo({ tls: true, onRequest: (socket) => socket.destroy() });
    expect(outcome).toMatchObject({ ...TRANSPORT, evidence: { phase: 'sent', closed: true } });
    expect(server.posts).toBe(1);
  });

  test('silence ends in a reset of the TCP connection below', async () => {
    let ending: unknown;
    const { outcome, server } = await submitTo(
      {
        tls: true,
        onConnection: (socket) =>
          socket.on('error', (error) => {
            ending = error;
          }),
      },
      { deadlines: { connectMs: 2_000, firstResponseMs: 2_100, submissionMs: 2_200 } },
    );
    expect(outcome).toEqual({ ...TRANSPORT, evidence: noStatus('sent', 'first_response_deadline') });
    expect(server.posts).toBe(1);
    expect(ending).toMatchObject({ code: 'ECONNRESET' });
  });

  test('a certificate for another name is unsent', async () => {
    const server = await rawServer({ tls: true });
    const outcome = await submitAt(`https://127.0.0.1:${server.port}`);
    await server.stop();
    expect(outcome).toEqual({ ...UNSENT, evidence: noStatus('unsent', 'ERR_TLS_CERT_ALTNAME_INVALID') });
    expect(server.bytes).toBe(0);
  });

  test('a gate that closes at the last moment lets no byte out', async () => {
    for (const openFor of [1, 2]) {
      let asked = 0;
      const { outcome, server } = await submitTo({ tls: true }, { maySend: () => ++asked <= openFor });
      expect(outcome).toEqual({ ...UNSENT_OWN_DOING, evidence: noStatus('unsent', 'gate_closed') });
      expect(server.bytes).toBe(0);
    }
  });
});
