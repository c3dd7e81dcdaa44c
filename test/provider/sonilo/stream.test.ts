import { createHash, randomBytes } from 'node:crypto';
import type { Dispatcher } from 'undici';
import { describe, expect, it, test } from 'vitest';
import type { StreamEnd, StreamReading, StreamTerms, SubmissionStream } from '../../../src/core/provider.ts';
import { OpenBody } from '../../../src/provider/sonilo/open-body.ts';
import { type Opening, readOpening } from '../../../src/provider/sonilo/stream.ts';
import { MAX_LINE_BYTES } from '../../../src/provider/sonilo/stream-lines.ts';

const TERMS: StreamTerms = { idleMs: 60_000, totalMs: 60_000, contentCodes: ['CONTENT_POLICY'] };
const plain = (code: unknown) => (typeof code === 'string' && /^\w{1,64}$/.test(code) ? code : null);

/** A connection that nobody has to wait for. */
function openBody(maxBytes = 512 * 1024 * 1024): OpenBody & { readonly ended: () => number } {
  let paused = false;
  let ends = 0;
  const controller = {
    get paused() {
      return paused;
    },
    pause: () => {
      paused = true;
    },
    resume: () => {
      paused = false;
    },
  } as unknown as Dispatcher.DispatchController;
  const body = new OpenBody(controller, {
    calledAt: performance.now(),
    wholeMs: 60_000,
    maxBytes,
    isSending: () => false,
    endConnection: () => {
      ends += 1;
    },
  });
  return Object.assign(body, { ended: () => ends });
}

function opened(pieces: Iterable<Buffer | string>, how: 'complete' | 'cut' | null = 'complete') {
  const body = openBody();
  for (const piece of pieces) body.push(Buffer.from(piece));
  if (how !== null) body.end(how);
  return readOpening(body, TERMS, plain);
}

function streamOf(opening: Opening): SubmissionStream {
  if (opening.kind !== 'started') throw new Error(`it is ${opening.kind}`);
  return opening.stream;
}

interface Read {
  readonly end: StreamEnd;
  /** By index. */
  readonly sounds: Readonly<Record<number, string>>;
}

const digest = (bytes: Uint8Array) => createHash('sha256').update(bytes).digest('hex');

async function readAll(stream: SubmissionStream): Promise<Read> {
  const pieces = new Map<number, Uint8Array[]>();
  for (;;) {
    const reading: StreamReading = await stream.read();
    if (reading.kind !== 'audio') {
      const sounds = [...pieces].map(([index, all]) => [index, digest(Buffer.concat(all))] as const);
      return { end: reading, sounds: Object.fromEntries(sounds) };
    }
    pieces.set(reading.index, [...(pieces.get(reading.index) ?? []), reading.bytes]);
  }
}

const read = async (lines: string, how: 'complete' | 'cut' | null = 'complete') =>
  readAll(streamOf(await opened([lines], how)));

const chunk = (bytes: Uint8Array, index = 0, streams = 1) =>
  JSON.stringify({
    type: 'audio_chunk',
    stream_index: index,
    num_streams: streams,
    data: Buffer.from(bytes).toString('base64'),
  });
const TITLE = { title: 'Ein schönes 歌 für 🎵', summary: 'λ', display_tags: ['é', '音'] };
const title = JSON.stringify({ type: 'title', ...TITLE });
const COMPLETE = '{"type":"complete"}';
const SOUND = Buffer.from('some bytes of sound');
const START = `${title}\n${chunk(SOUND)}\n`;

describe('the bytes of a stream', () => {
  const first = randomBytes(40);
  const second = randomBytes(33);
  const text = [
    title,
    '',
    chunk(first.subarray(0, 17), 0, 2),
    chunk(second.subarray(0, 1), 1, 2),
    chunk(first.subarray(17), 0, 2),
    '   ',
    chunk(second.subarray(1), 1, 2),
    '{"type":"cost","billing_after_discount":"0.1"}',
    COMPLETE,
  ].join('\r\n');
  const whole: Read = {
    end: { kind: 'complete', streams: 2, document: { title: TITLE } },
    sounds: { 0: digest(first), 1: digest(second) },
  };

  it('are the same in one piece, byte by byte, and cut at each offset', async () => {
    const bytes = Buffer.from(text);
    const inOne = await readAll(streamOf(await opened([bytes])));
    expect(inOne).toEqual(whole);
    const byByte = await readAll(streamOf(await opened(Array.from(bytes, (byte) => Buffer.of(byte)))));
    expect(byByte).toEqual(whole);
    for (let at = 1; at < bytes.length; at++) {
      const cut = await readAll(streamOf(await opened([bytes.subarray(0, at), bytes.subarray(at)])));
      expect(cut, `cut at ${at}`).toEqual(whole);
    }
  });

  it('are taken while they come, in whatever pieces', async () => {
    const body = openBody();
    const opening = readOpening(body, TERMS, plain);
    const feeding = (async () => {
      for (const byte of Buffer.from(text)) {
        body.push(Buffer.of(byte));
        await Promise.resolve();
      }
      body.end('complete');
    })();
    expect(await readAll(streamOf(await opening))).toEqual(whole);
    await feeding;
  });

  it('may be a mark, a line and its end: each stands for what it is', async () => {
    expect((await read(`\ufeff${START}${COMPLETE}`)).end.kind).toBe('complete');
  });

  it('of a line of 7 MB in small pieces take time by its length alone', async () => {
    const large = randomBytes(5_000_000);
    const line = Buffer.from(`${chunk(large)}\n${COMPLETE}\n`);
    const pieces: Buffer[] = [];
    for (let at = 0; at < line.length; at += 64) pieces.push(line.subarray(at, at + 64));
    const body = openBody();
    const opening = readOpening(body, TERMS, plain);
    for (const [number, piece] of pieces.entries()) {
      body.push(piece);
      // Each piece for itself, as a socket would bring them.
      if (number % 16 === 0) await Promise.resolve();
    }
    body.end('complete');
    expect((await readAll(streamOf(await opening))).sounds).toEqual({ 0: digest(large) });
  });
});

describe('what is no event', () => {
  it('is an index of null: the only stream there is', async () => {
    const line = JSON.stringify({ type: 'audio_chunk', stream_index: null, num_streams: null, data: 'AAAA' });
    expect((await read(`${line}\n${COMPLETE}\n`)).end).toMatchObject({ kind: 'complete', streams: 1 });
  });

  test.each(['null', '5', '"x"', '[]', '{}', '{"type":5}', '{"type":"trace","x":1}', ' ', '\r'])(
    'such as %j is passed over',
    async (line) => {
      const { end, sounds } = await read(`${line}\n${START}${line}\n${COMPLETE}\n${line}\n`);
      expect([end.kind, sounds]).toEqual(['complete', { 0: digest(SOUND) }]);
    },
  );

  it('in ten million is passed over in bounded time', async () => {
    const body = openBody();
    const opening = readOpening(body, TERMS, plain);
    const blank = Buffer.alloc(100_000, '\n');
    for (let n = 0; n < 100; n++) {
      body.push(blank);
      await new Promise((resolve) => setImmediate(resolve));
    }
    body.push(Buffer.from(`${START}${COMPLETE}`));
    body.end('complete');
    expect((await readAll(streamOf(await opening))).end.kind).toBe('complete');
  });
});

describe('a stream is interrupted', () => {
  const audio = (more: object) => JSON.stringify({ type: 'audio_chunk', data: 'AAAA', ...more });

  test.each<[string, string, string]>([
    ['by a line that is no JSON', `${START}{"type":"audio_chunk","da\n${COMPLETE}\n`, 'stream_damaged'],
    ['by base64 without its padding', `${START}${audio({ data: 'AAA' })}\n`, 'stream_damaged'],
    ['by base64 that is not canonical', `${START}${audio({ data: 'AAB=' })}\n`, 'stream_damaged'],
    ['by base64 with a blank', `${START}${audio({ data: 'AA AA' })}\n`, 'stream_damaged'],
    ['by base64 of URLs', `${START}${audio({ data: '-_-_' })}\n`, 'stream_damaged'],
    ['by sound that is no text', `${START}${audio({ data: 5 })}\n`, 'stream_damaged'],
    ['by sound that is not there', `${START}{"type":"audio_chunk"}\n`, 'stream_damaged'],
    ['by an index above 9', `${START}${audio({ stream_index: 10 })}\n`, 'stream_damaged'],
    ['by an index that is no number', `${START}${audio({ stream_index: '1' })}\n`, 'stream_damaged'],
    ['by damage in its first event', `${audio({ data: 'A' })}\n${COMPLETE}\n`, 'stream_damaged'],
    ['when it ends without complete', START, 'stream_cut'],
    ['when it ends in a line', `${START}{"type":"comp`, 'stream_cut'],
    [
      'when it completes without sound',
      `${title}\n${audio({ data: '' })}\n${COMPLETE}\n`,
      'stream_without_audio',
    ],
    ['by a second complete', `${START}${COMPLETE}\n${COMPLETE}\n`, 'stream_after_complete'],
    ['by sound after complete', `${START}${COMPLETE}\n${chunk(SOUND)}\n`, 'stream_after_complete'],
    ['by an error after complete', `${START}${COMPLETE}\n{"type":"error"}\n`, 'stream_after_complete'],
  ])('%s', async (_name, text, errorCode) => {
    expect((await read(text)).end).toEqual({ kind: 'interrupted', errorCode });
  });

  it('by a line that is too long, as soon as it is', async () => {
    const body = openBody();
    const opening = readOpening(body, TERMS, plain);
    body.push(Buffer.from(START));
    const stream = streamOf(await opening);
    const reading = readAll(stream);
    const piece = Buffer.alloc(1_048_576, 'a');
    for (let sent = 0; sent <= MAX_LINE_BYTES; sent += piece.length) {
      body.push(piece);
      await new Promise((resolve) => setImmediate(resolve));
    }
    expect((await reading).end).toEqual({ kind: 'interrupted', errorCode: 'line_too_large' });
    expect(body.ended()).toBe(1);
  });

  it('when it is too large altogether', async () => {
    const body = openBody(START.length * 3);
    for (let n = 0; n < 10; n++) body.push(Buffer.from(START));
    const { end } = await readAll(streamOf(await readOpening(body, TERMS, plain)));
    expect(end).toEqual({ kind: 'interrupted', errorCode: 'stream_too_large' });
  });

  it('by nobody who reads it: our own doing', async () => {
    const body = openBody();
    const opening = readOpening(body, { ...TERMS, totalMs: 100 }, plain);
    body.push(Buffer.from(START));
    const stream = streamOf(await opening);
    expect((await stream.read()).kind).toBe('audio');
    expect(await body.over).toBe('unread');
    const end = { kind: 'interrupted', errorCode: 'stream_unread', isOurs: true };
    expect([await stream.read(), await stream.read()]).toEqual([end, end]);
  });

  it('by whoever cancels it, and says so from then on', async () => {
    const stream = streamOf(await opened([START], null));
    expect((await stream.read()).kind).toBe('audio');
    const waiting = stream.read();
    stream.cancel();
    stream.cancel();
    const end = { kind: 'interrupted', errorCode: 'cancelled', isOurs: true };
    expect([await waiting, await stream.read()]).toEqual([end, end]);
  });
});

describe('an error of the provider', () => {
  test.each<[string, object, string | null, boolean]>([
    ['has its code', { code: 'FAL_ERROR', message: 'no' }, 'FAL_ERROR', false],
    ['may have none', {}, null, false],
    ['may have null', { code: null, message: null }, null, false],
    ['may have a number', { code: 7, message: 7 }, null, false],
    ['may have an endless message', { code: 'X', message: 'm'.repeat(1_000_000) }, 'X', false],
    ['may be about the content', { code: 'content_policy' }, 'content_policy', true],
  ])('%s', async (_name, error, errorCode, isContent) => {
    const line = JSON.stringify({ type: 'error', ...error });
    expect((await read(`${START}${line}\n`, null)).end).toEqual({ kind: 'failed', errorCode, isContent });
    expect(await opened([`${line}\n`], null)).toEqual({ kind: 'failed', errorCode });
  });
});

describe('after complete', () => {
  it('a connection that hangs is waited for a second, and no longer', async () => {
    const started = performance.now();
    expect((await read(`${START}${COMPLETE}\n`, null)).end.kind).toBe('complete');
    expect(performance.now() - started).toBeGreaterThan(900);
  });

  it('a reset changes nothing', async () => {
    expect((await read(`${START}${COMPLETE}`, 'cut')).end.kind).toBe('complete');
  });
});

describe('an answer without an event', () => {
  const whole = (body: string, bodyEnd: 'complete' | 'cut' = 'complete') => ({
    kind: 'whole',
    body: Buffer.from(body),
    bodyEnd,
    deadline: null,
  });
  const task = '{"task_id":"task-1","status":"processing"}';

  it('is that of a task, in one line or several', async () => {
    expect(await opened([task])).toEqual(whole(task));
    expect(await opened([`${task}\n`], null)).toEqual(whole(task));
    const pretty = JSON.stringify(JSON.parse(task), null, 2);
    expect(await opened([pretty])).toEqual(whole(pretty));
  });

  it('is whatever came of it', async () => {
    expect(await opened([])).toEqual(whole(''));
    expect(await opened([task], 'cut')).toEqual(whole(task, 'cut'));
    expect(await opened(['<html>\n<b>'], 'cut')).toEqual(whole('<html>\n<b>', 'cut'));
    expect(await opened(['null\n{}\n'])).toEqual(whole('null\n{}\n'));
  });

  it('is read no further than an answer may be long', async () => {
    const opening = await opened(['junk\n', 'x'.repeat(2_000_000)], null);
    expect(opening).toMatchObject({ kind: 'whole', bodyEnd: 'too_large' });
  });
});

describe('after a standstill, with its deadlines overdue', () => {
  const standStill = () => void Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 60);
  /** Comes when the deadline has fired, and before anything else has had its turn. */
  const arrives = (body: OpenBody, then = () => {}) =>
    setTimeout(() => {
      body.push(Buffer.from('x'));
      then();
    }, 25);

  test('what has arrived counts before the silence does', async () => {
    const body = openBody();
    body.allow({ idleMs: 20, wholeMs: 60_000 });
    const next = body.next();
    arrives(body);
    standStill();
    expect(String(await next)).toBe('x');
    await new Promise(setImmediate);
    expect(body.how).toBeUndefined();
    body.cancel();
  });

  test('one that was put off by what has arrived doesn’t end it', async () => {
    const body = openBody();
    body.endBy(20);
    const next = body.next();
    arrives(body, () => body.endBy(60_000));
    standStill();
    expect(String(await next)).toBe('x');
    await new Promise(setImmediate);
    expect(body.how).toBeUndefined();
    body.cancel();
  });
});
