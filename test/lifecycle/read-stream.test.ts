import { randomUUID } from 'node:crypto';
import { expect, test } from 'vitest';
import type { StreamReading } from '../../src/core/provider.ts';
import { readStream } from '../../src/lifecycle/read-stream.ts';

const never = () => new Promise<never>(() => {});
const SOUND: StreamReading = { kind: 'audio', index: 0, bytes: Buffer.from('sound') };

/** How a stream ends that is read like that, and how often it was cancelled. */
async function endOf(read: () => Promise<StreamReading>) {
  let cancelled = 0;
  const attempt = { attemptId: randomUUID(), requestId: randomUUID(), operation: 'text-to-music' };
  const ctx = {
    database: { executeSql: async () => ({ rows: [attempt] }) },
    settingsOf: () => ({ stream: { totalMs: 200 } }),
    storage: { storeStream: () => ({ write: never, publish: never, discard: never }) },
  };
  const stream = { read, cancel: () => void cancelled++ };
  const done = await readStream(ctx as never, { attempt } as never, stream);
  return { end: done?.end, cancelled };
}

test.each<[string, () => Promise<StreamReading>, object]>([
  ['a storage that never answers', async () => SOUND, { errorCode: 'storage', isOurs: true }],
  ['a provider that never does', never, { errorCode: 'provider_silent' }],
])('%s holds a stream no longer than its deadline', async (_who, read, expected) => {
  const { end, cancelled } = await endOf(read);
  expect(end).toMatchObject({ kind: 'interrupted', ...expected });
  expect(cancelled).toBeGreaterThan(0);
});

test.each<[StreamReading, string | null]>([
  [{ kind: 'interrupted', errorCode: 'my customer wrote: rain' }, 'unprintable'],
  [{ kind: 'interrupted', errorCode: undefined as never }, 'unprintable'],
  [{ kind: 'failed', errorCode: 'rain on https://example.com/a.mp4', isContent: true }, 'unprintable'],
  [{ kind: 'failed', errorCode: null, isContent: false }, null],
  [{ kind: 'failed', errorCode: 'CONTENT_POLICY', isContent: true }, 'CONTENT_POLICY'],
])(
  'what an adapter tells of the end goes on as a code, and as nothing else (%#)',
  async (told, errorCode) => {
    const { end } = await endOf(async () => told);
    expect(end).toEqual({ ...told, errorCode });
  },
);
