import { createHash, randomBytes } from 'node:crypto';
import type { Socket } from 'node:net';
import { setTimeout as wait } from 'node:timers/promises';
import { gzipSync } from 'node:zlib';
import { describe, expect, onTestFinished, test, vi } from 'vitest';
import type { StreamTerms, SubmissionOutcome } from '../../../src/core/provider.ts';
import { waitFor } from '../../support/wait-for.ts';
import { SHORT, submitAt } from './fixtures.ts';
import { flood, rawServer } from './raw-server.ts';

// Deadlines are waited for, on machines on which much else runs.
vi.setConfig({ testTimeout: 60_000 });

const TERMS: StreamTerms = { idleMs: 20_000, totalMs: 40_000, contentCodes: [] };
const FIELDS = { prompt: 'Rain', mode: 'stream' };
const SOUND = randomBytes(300);
const audio = (bytes: Uint8Array) =>
  `{"type":"audio_chunk","data":"${Buffer.from(bytes).toString('base64')}"}\n`;
const TITLE = '{"type":"title","title":"é"}\n';
const COMPLETE = '{"type":"complete"}\n';
const CHUNKED = 'HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n';
const CLOSED = 'HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\nconnection: close\r\n\r\n';
const chunk = (text: string | Buffer) =>
  Buffer.concat([
    Buffer.from(`${Buffer.byteLength(text).toString(16)}\r\n`),
    Buffer.from(text),
    Buffer.from('\r\n'),
  ]);

async function asked(
  answer: (socket: Socket) => void,
  changes: {
    readonly stream?: Partial<StreamTerms>;
    readonly deadlines?: typeof SHORT;
    readonly fields?: Readonly<Record<string, string>>;
  } = {},
): Promise<{ outcome: SubmissionOutcome; ended: () => number }> {
  let ended = 0;
  const server = await rawServer({
    onConnection: (socket) => socket.on('close', () => (ended += 1)).setNoDelay(true),
    onRequest: (socket, request) => {
      expect(request.body).toContain('stream');
      answer(socket);
    },
  });
  onTestFinished(() => server.stop());
  const { stream, ...more } = changes;
  const terms = { stream: { ...TERMS, ...stream }, fields: FIELDS, ...more };
  return { outcome: await submitAt(`http://127.0.0.1:${server.port}`, terms), ended: () => ended };
}

/** How it ended, and the digest of what came before. */
async function told({ stream }: SubmissionOutcome) {
  if (stream === undefined) throw new Error('no stream');
  const hash = createHash('sha256');
  for (;;) {
    const reading = await stream.read();
    if (reading.kind !== 'audio') return { end: reading, sha256: hash.digest('hex') };
    hash.update(reading.bytes);
  }
}

const sha256 = createHash('sha256').update(SOUND).digest('hex');

describe('a stream without complete', () => {
  const chunks = [0, 100, 200].map((at) => audio(SOUND.subarray(at, at + 100))).join('');
  const contents: readonly (readonly [string, string])[] = [
    ['nothing', ''],
    ['a title', TITLE],
    ['three chunks', `${TITLE}${chunks}`],
    ['three chunks and half a line', `${TITLE}${chunks}{"type":"audio_chunk","data":"AA`],
    ['all but complete', `${TITLE}${chunks}{"type":"cost"}\n`],
  ];
  const endings: Readonly<Record<string, (socket: Socket, text: string) => void>> = {
    'the proper end of its chunks': (socket, text) =>
      socket.end(Buffer.concat([Buffer.from(CHUNKED), ...(text === '' ? [] : [chunk(text)]), chunk('')])),
    'a FIN that ends a body without a length': (socket, text) => socket.end(CLOSED + text),
    'a reset': (socket, text) =>
      socket.write(Buffer.concat([Buffer.from(CHUNKED), ...(text === '' ? [] : [chunk(text)])]), () =>
        setTimeout(() => socket.resetAndDestroy(), 50),
      ),
    'less than its length': (socket, text) =>
      socket.end(`HTTP/1.1 200 OK\r\ncontent-length: ${text.length + 99}\r\n\r\n${text}`),
    'bytes that are no chunk': (socket, text) =>
      socket.write(
        Buffer.concat([Buffer.from(CHUNKED), ...(text === '' ? [] : [chunk(text)]), Buffer.from('zz\r\n')]),
      ),
  };

  for (const [how, end] of Object.entries(endings)) {
    for (const [what, text] of contents) {
      test(`of ${what}, by ${how}`, async () => {
        const { outcome, ended } = await asked((socket) => end(socket, text));
        if (text === '') {
          expect(outcome).toMatchObject({ certainty: 'unknown', reason: 'accepted_without_task_id' });
          expect(outcome.stream).toBeUndefined();
        } else {
          expect(outcome).toMatchObject({
            health: 'success',
            certainty: 'accepted',
            reason: 'stream_started',
            evidence: { phase: 'response_started', httpStatus: 200, providerTaskId: null, headersSent: true },
          });
          const { end: over } = await told(outcome);
          expect(over).toEqual({ kind: 'interrupted', errorCode: 'stream_cut' });
        }
        await waitFor(() => ended() === 1, { what: 'the connection to end' });
      });
    }
  }
});

describe('byte by byte', () => {
  const text = `${TITLE}${audio(SOUND)}${COMPLETE}`;

  test.each<[string, string, (byte: number) => Buffer]>([
    ['in chunks of one byte', CHUNKED, (byte) => chunk(Buffer.of(byte))],
    ['in segments of one byte', CLOSED, (byte) => Buffer.of(byte)],
  ])('%s, the sound is the same', async (_name, head, piece) => {
    const { outcome } = await asked((socket) => {
      socket.write(head);
      void (async () => {
        for (const byte of Buffer.from(text)) {
          await new Promise((resolve) => socket.write(piece(byte), resolve));
        }
        socket.end(head === CHUNKED ? chunk('') : '');
      })();
    });
    expect(await told(outcome)).toEqual({
      end: { kind: 'complete', streams: 1, document: { title: { title: 'é' } } },
      sha256,
    });
  });
});

describe('an answer without an event', () => {
  const task = { task_id: 'task-1', status: 'processing' };
  const answer = (status: number, body: string) => (socket: Socket) =>
    socket.end(`HTTP/1.1 ${status} X\r\ncontent-length: ${body.length}\r\n\r\n${body}`);

  test.each([
    [200, JSON.stringify(task)],
    [202, JSON.stringify(task, null, 2)],
  ])('is a task where it names one: %i %j', async (status, body) => {
    const { outcome } = await asked(answer(status, body));
    expect(outcome).toMatchObject({
      certainty: 'accepted',
      reason: 'task_accepted',
      evidence: { phase: 'answered', httpStatus: status, providerTaskId: 'task-1', closed: true },
    });
    expect(outcome.stream).toBeUndefined();
  });

  test.each([
    ['HTML', '<html>'],
    ['a task without an id', '{"status":"processing"}'],
  ])('is accepted by nobody knows what: %s', async (_name, body) => {
    const { outcome } = await asked(answer(200, body));
    expect(outcome).toMatchObject({ certainty: 'unknown', reason: 'accepted_without_task_id', alert: true });
  });

  test('is none that we can read when somebody on the way has compressed it', async () => {
    const body = gzipSync(`${TITLE}${audio(SOUND)}${COMPLETE}`);
    const { outcome } = await asked((socket) => {
      socket.write('HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\nconnection: close\r\n\r\n');
      socket.end(body);
    });
    expect(outcome).toMatchObject({
      reason: 'accepted_without_task_id',
      evidence: { errorCode: 'content_encoding' },
    });
  });

  test('is a refusal as ever', async () => {
    const { outcome } = await asked(answer(422, '{"code":"validation_error"}'));
    expect(outcome).toMatchObject({
      certainty: 'refused',
      reason: 'request_refused',
      evidence: { errorCode: 'validation_error' },
    });
  });

  test('is unknown when none comes within submissionMs', async () => {
    const { outcome } = await asked((socket) => socket.write(`${CHUNKED}1\r\n\n\r\n`), { deadlines: SHORT });
    expect(outcome).toMatchObject({
      certainty: 'unknown',
      reason: 'accepted_without_task_id',
      evidence: { errorCode: 'submission_deadline', closed: true },
    });
  });
});

test('an error as the first event is the failure of what was accepted', async () => {
  const { outcome, ended } = await asked((socket) =>
    socket.write(`${CLOSED}{"type":"error","code":"FAL_ERROR","message":"Rain"}\n`),
  );
  expect(outcome).toMatchObject({
    health: 'dependency_failure',
    certainty: 'accepted',
    reason: 'stream_failed',
    evidence: { errorCode: 'FAL_ERROR' },
  });
  await waitFor(() => ended() === 1, { what: 'the connection to end' });
});

test('a code that repeats the prompt is not told', async () => {
  const { outcome } = await asked((socket) =>
    socket.write(`${CLOSED}${TITLE}{"type":"error","code":"Rain"}\n`),
  );
  expect((await told(outcome)).end).toEqual({ kind: 'failed', errorCode: null, isContent: false });
});

test.each([
  ['first', ''],
  ['later', TITLE],
])('a content code is one, whoever has written it into the prompt: %s event', async (_which, before) => {
  const { outcome } = await asked(
    (socket) => socket.write(`${CLOSED}${before}{"type":"error","code":"content_policy"}\n`),
    { stream: { contentCodes: ['CONTENT_POLICY'] }, fields: { ...FIELDS, prompt: 'no content_policy here' } },
  );
  if (before === '') {
    expect(outcome).toMatchObject({ health: 'none', evidence: { errorCode: 'content_policy' } });
  } else {
    const { end } = await told(outcome);
    expect(end).toEqual({ kind: 'failed', errorCode: 'content_policy', isContent: true });
  }
});

describe('the deadlines', () => {
  /** So many lines, `everyMs` apart. */
  const drip = (lines: readonly string[], everyMs: number) => (socket: Socket) => {
    socket.write(CLOSED + TITLE);
    void (async () => {
      for (const line of lines) {
        await wait(everyMs);
        socket.write(line);
      }
    })();
  };

  test('of the submission end with the first event', async () => {
    const noise = Array.from({ length: 8 }, () => '{"type":"trace"}\n');
    const { outcome } = await asked(drip([...noise, audio(SOUND), COMPLETE], 300), { deadlines: SHORT });
    expect(await told(outcome)).toMatchObject({ end: { kind: 'complete' }, sha256 });
  });

  test('of silence let any byte count, and then end it', async () => {
    const { outcome, ended } = await asked(drip([' ', ' ', ' ', ' ', ' '], 400), {
      stream: { idleMs: 1_200 },
    });
    const from = performance.now();
    expect((await told(outcome)).end).toEqual({ kind: 'interrupted', errorCode: 'stream_idle' });
    expect(performance.now() - from).toBeGreaterThan(2_500);
    await waitFor(() => ended() === 1, { what: 'the connection to end' });
  });

  test('of the whole end one that goes on and on', async () => {
    const { outcome, ended } = await asked(
      (socket) => {
        socket.write(CLOSED);
        const drops = setInterval(() => socket.write('{"type":"trace"}\n'), 50);
        socket.on('close', () => clearInterval(drops));
      },
      { stream: { totalMs: 1_500 } },
    );
    expect((await told(outcome)).end).toEqual({ kind: 'interrupted', errorCode: 'stream_deadline' });
    await waitFor(() => ended() === 1, { what: 'the connection to end' });
  });
});

test('nothing more is read from the socket than is taken, and that is no silence', async () => {
  const line = audio(randomBytes(48_000));
  let peer: Socket | undefined;
  const { outcome, ended } = await asked(
    (socket) => {
      peer = socket;
      socket.write(CLOSED);
      flood(socket, line);
    },
    { stream: { idleMs: 400 } },
  );
  const written = async () => {
    // Until it stands still.
    for (let last = -1; ; ) {
      const now = peer?.bytesWritten ?? 0;
      if (now === last) return now;
      last = now;
      await wait(300);
    }
  };
  const first = await written();
  // Of which the kernels of both sides hold most.
  expect(first).toBeLessThan(32 * 1024 * 1024);
  await wait(1_000);
  const { stream } = outcome;
  for (let taken = 0; taken < 2 * first; ) {
    const reading = await stream?.read();
    if (reading?.kind !== 'audio') throw new Error(`it is over: ${JSON.stringify(reading)}`);
    taken += reading.bytes.byteLength;
  }
  stream?.cancel();
  await waitFor(() => ended() === 1, { what: 'the connection to end' });
});
