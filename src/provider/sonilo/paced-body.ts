import { Readable } from 'node:stream';
import { setTimeout as wait } from 'node:timers/promises';
import { stopwatch } from '../../core/clock.ts';
import type { FreshSocket } from './fresh-socket.ts';

const LOOK_EVERY_MS = 5;

/**
 * A body that is sent over a time: a process that is stopped meanwhile, or a machine that is suspended, goes on
 * where it was when nobody expects it any more. So each piece is asked for its time, and the last waits until
 * everything before it has left this process: what waits in its queues leaves by itself when it goes on, and
 * would be whole without a question.
 */
export function pacedBody(source: Readable, socket: FreshSocket, submissionMs: number): Readable {
  const elapsedMs = stopwatch({ now: () => Date.now(), monotonic: () => performance.now() });
  return Readable.from(
    paced(source, socket, () => elapsedMs() < submissionMs),
    {
      objectMode: false,
      highWaterMark: source.readableHighWaterMark,
    },
  );
}

async function* paced(
  source: Readable,
  socket: FreshSocket,
  isInTime: () => boolean,
): AsyncGenerator<Uint8Array> {
  let held: Uint8Array | undefined;
  for await (const chunk of source) {
    if (held !== undefined) yield inTime(held, isInTime);
    held = chunk as Uint8Array;
  }
  if (held === undefined) return;
  while (socket.isWriting) await wait(LOOK_EVERY_MS);
  yield inTime(held, isInTime);
}

function inTime(chunk: Uint8Array, isInTime: () => boolean): Uint8Array {
  if (isInTime()) return chunk;
  throw Object.assign(new Error('submission_deadline'), { code: 'submission_deadline' });
}
