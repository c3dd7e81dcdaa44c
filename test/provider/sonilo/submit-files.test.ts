import { createHash } from 'node:crypto';
import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import { createServer } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import { describe, expect, onTestFinished, test, vi } from 'vitest';
import type { SourceFile, Submission } from '../../../src/core/provider.ts';
import { SEND_HEADERS } from '../../../src/provider/sonilo/wire-oracle.ts';
import { unusedPort } from '../../support/unused-port.ts';
import { noStatus, PROMPT, submitAt, submitTo, TRANSPORT, UNSENT, UNSENT_OWN_DOING } from './fixtures.ts';
import { rawServer, response } from './raw-server.ts';

vi.setConfig({ testTimeout: 30_000 });

const ACCEPTED = response(202, '{"task_id":"task-1","status":"processing"}');
const PIECE = Buffer.alloc(64 * 1024, 'bytes of a video\r\n--');

/** `failsAfter` so many pieces, with that code. */
function source(pieces: number, failure?: { readonly failsAfter: number; readonly code: string }) {
  const taken = { times: 0, pieces: 0 };
  const file: SourceFile = {
    bytes: pieces * PIECE.length,
    container: 'mp4',
    async *chunks() {
      taken.times++;
      for (let piece = 0; piece < pieces; piece++) {
        if (failure?.failsAfter === piece)
          throw Object.assign(new Error(failure.code), { code: failure.code });
        taken.pieces++;
        yield PIECE;
      }
    },
  };
  return { file, taken };
}

function withVideo(file: SourceFile, changes: Partial<Submission> = {}): Partial<Submission> {
  const video = JSON.stringify({ file: '/home/ada/their holiday.mp4', bytes: file.bytes, sha256: 'x' });
  const fields = { mode: 'async', prompt: PROMPT, video };
  return { operation: 'video-to-music', fields, files: { video: file }, ...changes };
}

/** To a server that reads the first bytes, does `then`, and reads no more. */
async function submitToPaused(then: (socket: Socket) => void, changes: Partial<Submission>) {
  const sockets: Socket[] = [];
  const server = await rawServer({
    onConnection(socket) {
      sockets.push(socket);
      socket.once('data', () => {
        socket.pause();
        then(socket);
      });
    },
  });
  const outcome = await submitAt(`http://127.0.0.1:${server.port}`, changes);
  // Paused, it would never see our end.
  for (const socket of sockets) socket.destroy();
  await server.stop();
  expect(sockets).toHaveLength(1);
  return { outcome, server };
}

/** Times that undici told of the first byte of a POST, while the test ran. */
function countSends(): { readonly sends: number } {
  const count = { sends: 0 };
  const listener = (message: unknown) => {
    if ((message as { request: { method: string; path: string } }).request.path.startsWith('/v1/video'))
      count.sends++;
  };
  subscribe(SEND_HEADERS, listener);
  onTestFinished(() => void unsubscribe(SEND_HEADERS, listener));
  return count;
}

describe('a POST with a file', () => {
  test('arrives whole and once: every field as it is stored, the file byte for byte, and no name of theirs', async () => {
    const count = countSends();
    const { file, taken } = source(5);
    const { outcome, server } = await submitTo(
      { onRequest: (socket) => socket.write(ACCEPTED) },
      withVideo(file),
    );
    expect(outcome).toMatchObject({ certainty: 'accepted', evidence: { providerTaskId: 'task-1' } });
    const [request] = server.requests;
    const body = Buffer.from(request?.body ?? '', 'latin1');
    expect(request?.headers['content-length']).toBe(String(body.length));
    expect(request?.headers).not.toHaveProperty('transfer-encoding');
    const contentType = request?.headers['content-type'] ?? '';
    const form = await new Response(body, { headers: { 'content-type': contentType } }).formData();
    expect([...form.keys()]).toEqual(['mode', 'prompt', 'video']);
    expect(form.get('prompt')).toBe(PROMPT);
    const video = form.get('video') as File;
    expect([video.name, video.type, video.size]).toEqual(['video.mp4', 'video/mp4', file.bytes]);
    expect(Buffer.from(await video.arrayBuffer()).equals(Buffer.concat(Array(5).fill(PIECE)))).toBe(true);
    expect(request?.body).not.toContain('holiday');
    expect([taken.times, count.sends]).toEqual([1, 1]);
  });

  test('is unsent when the connection is refused, and the file is not read', async () => {
    const { file, taken } = source(5);
    const outcome = await submitAt(`http://127.0.0.1:${await unusedPort()}`, withVideo(file));
    expect(outcome).toEqual({ ...UNSENT, evidence: noStatus('unsent', 'ECONNREFUSED') });
    expect(taken.pieces).toBeLessThanOrEqual(2);
  });

  test.each(['resetAndDestroy', 'destroy', 'end'] as const)(
    'cut in the middle of its body (%s) is unknown',
    async (how) => {
      const count = countSends();
      const { file } = source(200);
      const { outcome, server } = await submitTo(
        { onConnection: (socket) => void socket.once('data', () => void socket[how]()) },
        withVideo(file),
      );
      expect(outcome).toMatchObject({
        ...TRANSPORT,
        evidence: { phase: 'sent', headersSent: true, closed: true },
      });
      expect(server.posts).toBe(0);
      expect(count.sends).toBe(1);
    },
  );

  test.each([0, 3, 199])(
    'whose file fails after %i pieces is unknown, and no word about the provider',
    async (failsAfter) => {
      const { file } = source(200, { failsAfter, code: 'media_changed' });
      const { outcome, server } = await submitTo({}, withVideo(file));
      expect(outcome).toEqual({
        ...TRANSPORT,
        health: 'none',
        alert: true,
        evidence: noStatus('sent', 'media_changed'),
      });
      expect(server.posts).toBe(0);
    },
  );

  test('whose file yields less than was announced is unknown, and never a whole request', async () => {
    const { file } = source(5);
    const { outcome, server } = await submitTo({}, withVideo({ ...file, bytes: file.bytes + 1 }));
    expect(outcome).toMatchObject({ certainty: 'unknown', evidence: { phase: 'sent' } });
    expect(server.posts).toBe(0);
  });

  test('to a reader that stops reading ends by the deadline, and nothing more leaves', async () => {
    const { file, taken } = source(400);
    const deadlines = { connectMs: 1_000, firstResponseMs: 1_200, submissionMs: 1_600 };
    const { outcome, server } = await submitToPaused(() => undefined, withVideo(file, { deadlines }));
    expect(outcome).toEqual({ ...TRANSPORT, evidence: noStatus('sent', 'first_response_deadline') });
    expect(taken.pieces).toBeLessThan(400);
    expect(server.posts).toBe(0);
  });

  test('is accepted by a slow reader', async () => {
    const { file } = source(40);
    const { outcome, server } = await submitTo(
      {
        onConnection(socket) {
          socket.on('data', () => {
            socket.pause();
            setImmediate(() => socket.resume());
          });
        },
        onRequest: (socket) => socket.write(ACCEPTED),
      },
      withVideo(file),
    );
    expect(outcome).toMatchObject({ certainty: 'accepted' });
    expect(server.posts).toBe(1);
  });

  test.each([413, 422, 401])('refused with %i before the body was read is refused', async (status) => {
    const { file } = source(400);
    const refusal = response(status, '{"code":"payload_too_large"}', [['connection', 'close']]);
    const { outcome, server } = await submitToPaused((socket) => socket.write(refusal), withVideo(file));
    expect(outcome).toMatchObject({
      certainty: 'refused',
      health: 'request_or_account_failure',
      evidence: { httpStatus: status },
    });
    expect(server.posts).toBe(0);
  });

  test('accepted before the body was read is accepted: an answer with an id stands', async () => {
    const { file } = source(400);
    const { outcome } = await submitTo(
      { onConnection: (socket) => void socket.once('data', () => socket.write(ACCEPTED)) },
      withVideo(file),
    );
    expect(outcome).toMatchObject({ certainty: 'accepted', evidence: { providerTaskId: 'task-1' } });
  });

  test('whose gate closes while it connects is unsent by our own doing', async () => {
    const { file } = source(5);
    let asked = 0;
    const { outcome, server } = await submitTo({}, withVideo(file, { maySend: () => ++asked < 2 }));
    expect(outcome).toMatchObject({
      ...UNSENT_OWN_DOING,
      evidence: { phase: 'unsent', errorCode: 'gate_closed' },
    });
    expect(server.bytes).toBe(0);
  });

  test('whose gate closes at the first byte is unsent by our own doing', async () => {
    const { file } = source(5);
    let asked = 0;
    const { outcome, server } = await submitTo({}, withVideo(file, { maySend: () => ++asked < 3 }));
    expect(outcome).toMatchObject({
      ...UNSENT_OWN_DOING,
      evidence: { phase: 'unsent', errorCode: 'gate_closed' },
    });
    expect(server.bytes).toBe(0);
  });

  test('of 300 MB takes little memory', async () => {
    const { file } = source(4_800);
    const hash = createHash('sha256');
    let received = 0;
    const server = createServer((request, answer) => {
      request.on('data', (chunk: Buffer) => {
        received += chunk.length;
        hash.update(chunk);
      });
      request.on('end', () => answer.writeHead(202).end('{"task_id":"task-1","status":"processing"}'));
    });
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    onTestFinished(() => void server.close());
    let most = 0;
    const before = process.memoryUsage();
    const watching = setInterval(() => {
      const { heapUsed, external, arrayBuffers } = process.memoryUsage();
      most = Math.max(most, heapUsed + external - before.heapUsed - before.external, arrayBuffers);
    }, 5);
    const outcome = await submitAt(
      `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
      withVideo(file, { deadlines: { connectMs: 4_000, firstResponseMs: 40_000, submissionMs: 50_000 } }),
    );
    clearInterval(watching);
    expect(outcome).toMatchObject({ certainty: 'accepted' });
    expect(received).toBeGreaterThan(300_000_000);
    expect(most).toBeLessThan(150_000_000);
  });

  test('with nothing but a file is no urlencoded form with a path in it', async () => {
    const server = await rawServer({ onRequest: (socket) => socket.write(ACCEPTED) });
    const { file } = source(1);
    await submitAt(`http://127.0.0.1:${server.port}`, withVideo(file));
    await server.stop();
    expect(JSON.stringify(server.requests)).not.toMatch(/holiday|home%2Fada|sha256/);
  });
});
