import { Readable } from 'node:stream';
import { setTimeout as wait } from 'node:timers/promises';
import { stopwatch } from '../../core/clock.ts';
import type { FreshSocket } from './fresh-socket.ts';

const LOOK_EVERY_MS = 5;
/** A fresh connection surely takes so much at once; what is longer may wait in this process. */
const AT_ONCE_BYTES = 8_192;
const LAST_BYTES = 512;

/** What is put on the wire with the headers, in one piece; undefined for a body that has to be paced. */
export function wholeBody(body: Buffer | AsyncIterable<Uint8Array>): Buffer | undefined {
  return Buffer.isBuffer(body) && body.length <= AT_ONCE_BYTES ? body : undefined;
}

/**
 * A body that is sent over a time: a process that is stopped meanwhile, or a machine that is suspended, goes on
 * where it was when nobody expects it any more. So each piece is asked for its time, and the last, a small one,
 * waits until everything before it has left this process: what waits in its queues leaves without being asked.
 */
export function pacedBody(
  body: Buffer | AsyncIterable<Uint8Array>,
  socket: FreshSocket,
  submissionMs: number,
): Readable {
  const elapsedMs = stopwatch({ now: () => Date.now(), monotonic: () => performance.now() });
  const pieces = Buffer.isBuffer(body) ? inTwo(body) : body;
  const isInTime = () => elapsedMs() < submissionMs;
  return Readable.from(paced(pieces, socket, isInTime), { objectMode: false, highWaterMark: 65_536 });
}

async function* inTwo(body: Buffer): AsyncGenerator<Uint8Array> {
  yield body.subarray(0, -LAST_BYTES);
  yield body.subarray(-LAST_BYTES);
}

async function* paced(
  pieces: AsyncIterable<Uint8Array>,
  socket: FreshSocket,
  isInTime: () => boolean,
): AsyncGenerator<Uint8Array> {
  let held: Uint8Array | undefined;
  for await (const piece of pieces) {
    if (held !== undefined) yield inTime(held, isInTime);
    held = piece;
  }
  if (held === undefined) return;
  while (socket.isWriting) await wait(LOOK_EVERY_MS);
  yield inTime(held, isInTime);
}

function inTime(piece: Uint8Array, isInTime: () => boolean): Uint8Array {
  if (isInTime()) return piece;
  throw Object.assign(new Error('submission_deadline'), { code: 'submission_deadline' });
}
