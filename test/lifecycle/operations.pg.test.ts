import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it, onTestFinished } from 'vitest';
import type { OperationFields, OperationName } from '../../src/core/operations.ts';
import type { EnqueueInput } from '../../src/index.ts';
import { waitFor } from '../support/wait-for.ts';
import { openWorld } from '../support/world.ts';

const video_url = 'https://videos.example/a.mp4';

const FIELDS: { readonly [Name in OperationName]: OperationFields[Name] } = {
  'text-to-music': {
    prompt: 'a harbour at dawn',
    duration: 12,
    segments: [
      { start: 0, prompt: 'waves', label: 'intro' },
      { start: 5, prompt: 'gulls' },
    ],
    variants_num: 2,
  },
  'video-to-music': { video_url, prompt: 'calm', prompt_influence: 0.3, ducking: true },
  'text-to-sfx': { prompt: 'a door', duration: 0.5, audio_format: 'wav' },
  'video-to-sfx': {
    video_url,
    segments: [
      { start: 0, end: 1.5, prompt: 'steps' },
      { start: 1.5, end: 3, prompt: 'a door' },
    ],
  },
};

describe('every operation that is offered', () => {
  it.each(Object.entries(FIELDS))(
    '%s passes preflight and the provider, and its files are brought in',
    async (operation, fields) => {
      const directory = await mkdtemp(join(tmpdir(), 'onetake-generations-'));
      onTestFinished(() => rm(directory, { recursive: true, force: true }));
      const config = { storage: { directory, allowPrivateHosts: true } };
      const world = await openWorld({ config, simulator: { runTimeMs: 1 } });
      await Promise.all([world.worker().start(), world.poller().start()]);
      const input = { operation, fields, requestKey: 'one' } as EnqueueInput;
      const { id } = (await world.client.enqueue(input)) as { id: string };
      const settled = await waitFor(
        async () => {
          const found = await world.client.get(id);
          return found?.settledAt == null ? undefined : found;
        },
        { what: `${operation} to end` },
      );
      expect(settled).toMatchObject({ state: 'succeeded', resultStatus: 'stored', warnings: [] });
      expect(settled.files).toHaveLength(operation === 'text-to-music' ? 2 : 1);
      expect(world.posts()).toBe(1);
    },
  );
});
