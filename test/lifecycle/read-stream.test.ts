import { randomUUID } from 'node:crypto';
import { expect, test } from 'vitest';
import type { StreamReading } from '../../src/core/provider.ts';
import { readStream } from '../../src/lifecycle/read-stream.ts';

const never = () => new Promise<never>(() => {});
const SOUND: StreamReading = { kind: 'audio', index: 0, bytes: Buffer.from('sound') };

test.each<[string, () => Promise<StreamReading>, object]>([
  ['a storage that never answers', async () => SOUND, { errorCode: 'storage', isOurs: true }],
  ['a provider that never does', never, { errorCode: 'provider_silent' }],
])('%s holds a stream no longer than its deadline', async (_who, read, end) => {
  const cancelled: string[] = [];
  const attempt = { attemptId: randomUUID(), requestId: randomUUID(), operation: 'text-to-music' };
  const ctx = {
    database: { executeSql: async () => ({ rows: [attempt] }) },
    settingsOf: () => ({ stream: { totalMs: 200 } }),
    storage: { storeStream: () => ({ write: never, publish: never, discard: never }) },
  };
  const stream = { read, cancel: () => void cancelled.push('stream') };
  const done = await readStream(ctx as never, { attempt } as never, stream);
  expect(done?.end).toMatchObject({ kind: 'interrupted', ...end });
  expect(cancelled).not.toEqual([]);
});
