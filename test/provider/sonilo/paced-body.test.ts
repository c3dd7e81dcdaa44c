import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import type { Socket } from 'node:net';
import { describe, expect, onTestFinished, test, vi } from 'vitest';
import type { SourceFile, Submission } from '../../../src/core/provider.ts';
import { SEND_HEADERS } from '../../../src/provider/sonilo/wire-oracle.ts';
import { PROMPT, submitTo, TRANSPORT } from './fixtures.ts';
import { response } from './raw-server.ts';

vi.setConfig({ testTimeout: 30_000 });

const ACCEPTED = response(202, '{"task_id":"task-1","status":"processing"}');
const PIECE = Buffer.alloc(64 * 1024, 'bytes of a video ');

/** Before each piece the test may do something, as whoever stops a process may. */
function upload(pieces: number, before: (piece: number) => void = () => {}): Partial<Submission> {
  const file: SourceFile = {
    bytes: pieces * PIECE.length,
    container: 'mp4',
    async *chunks() {
      for (let piece = 0; piece < pieces; piece++) {
        before(piece);
        yield PIECE;
      }
    },
  };
  const fields = { mode: 'async', prompt: PROMPT, video: '{}' };
  return { operation: 'video-to-music', fields, files: { video: file } };
}

/** The machine was suspended: its monotonic clock stood still, and its wall clock is ahead. */
function suspendMachine(ms: number): void {
  const now = Date.now;
  Date.now = () => now() + ms;
  onTestFinished(() => {
    Date.now = now;
  });
}

/** So that there is a queue on the way to it. Answers once it has seen the end. */
function readSlowly(socket: Socket): void {
  socket.on('data', (chunk: Buffer) => {
    socket.pause();
    setImmediate(() => socket.resume());
    if (chunk.subarray(-4).toString() === '--\r\n') socket.write(ACCEPTED);
  });
}

describe('a process that is stopped while it sends a file', () => {
  test.each([0, 3, 39])('at piece %i of 40 and beyond its time, never sends the whole', async (at) => {
    const { outcome, server } = await submitTo(
      { onRequest: (socket) => socket.write(ACCEPTED) },
      upload(40, (piece) => {
        if (piece === at) suspendMachine(11_000);
      }),
    );
    expect(outcome).toMatchObject({
      ...TRANSPORT,
      evidence: { phase: 'sent', errorCode: 'submission_deadline', headersSent: true },
    });
    expect(server.posts).toBe(0);
  });

  test('and within its time, goes on', async () => {
    const { outcome, server } = await submitTo(
      { onRequest: (socket) => socket.write(ACCEPTED) },
      upload(40, (piece) => {
        if (piece === 39) suspendMachine(5_000);
      }),
    );
    expect(outcome).toMatchObject({ certainty: 'accepted' });
    expect(server.posts).toBe(1);
  });

  test('has nothing but the last bytes in its hands when it asks for the last time', async () => {
    let [sending, waiting] = [undefined as Socket | undefined, -1];
    const onHeaders = (message: unknown) => {
      const { request, socket } = message as { request: { path: string }; socket: Socket };
      if (request.path.startsWith('/v1/video')) sending = socket;
    };
    const onChunk = (message: unknown) => {
      const { chunk } = message as { chunk: Buffer };
      if (/^--onetake-[0-9a-f]+--\r\n$/.test(String(chunk))) waiting = sending?.writableLength ?? -1;
    };
    subscribe(SEND_HEADERS, onHeaders);
    subscribe('undici:request:bodyChunkSent', onChunk);
    onTestFinished(() => {
      unsubscribe(SEND_HEADERS, onHeaders);
      unsubscribe('undici:request:bodyChunkSent', onChunk);
    });
    const { outcome } = await submitTo({ onConnection: readSlowly, keepsNothing: true }, upload(200));
    expect(outcome).toMatchObject({ certainty: 'accepted' });
    expect(waiting).toBeGreaterThanOrEqual(0);
    expect(waiting).toBeLessThan(100);
  });

  test('after the first piece of a long text, never sends the whole', async () => {
    const prompt = 'слово '.repeat(2_000);
    const changes = { fields: { mode: 'async', prompt } };
    const onRequest = (socket: Socket) => void socket.write(ACCEPTED);
    const undisturbed = await submitTo({ onRequest }, changes);
    expect(undisturbed.outcome).toMatchObject({ certainty: 'accepted' });
    expect(new URLSearchParams(undisturbed.server.requests[0]?.body).get('prompt')).toBe(prompt);
    let pieces = 0;
    const onChunk = (message: unknown) => {
      // Not the POST by which the process tries its own wire.
      if (!(message as { request: { path: string } }).request.path.endsWith('/text-to-music')) return;
      if (++pieces === 1) suspendMachine(11_000);
    };
    subscribe('undici:request:bodyChunkSent', onChunk);
    onTestFinished(() => void unsubscribe('undici:request:bodyChunkSent', onChunk));
    const { outcome, server } = await submitTo({ onRequest }, changes);
    expect(outcome).toMatchObject({ ...TRANSPORT, evidence: { errorCode: 'submission_deadline' } });
    expect([server.posts, pieces]).toEqual([0, 1]);
  });
});
