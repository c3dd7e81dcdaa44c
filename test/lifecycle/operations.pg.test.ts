import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, it, onTestFinished } from 'vitest';
import { OPERATION_NAMES, type OperationFields, type OperationName } from '../../src/core/operations.ts';
import type { EnqueueInput, RequestDetails } from '../../src/index.ts';
import { waitFor } from '../support/wait-for.ts';
import { openWorld } from '../support/world.ts';

const video_url = 'https://videos.example/a.mp4';

interface Example<Name extends OperationName> {
  readonly fields: OperationFields[Name];
  /** Index, kind and label of each. */
  readonly files: readonly string[];
  readonly warnings?: readonly string[];
}

const EXAMPLES: { readonly [Name in OperationName]: Example<Name> } = {
  'text-to-music': {
    fields: {
      prompt: 'a harbour at dawn',
      duration: 5,
      output_format: 'wav',
      segments: [{ start: 0, prompt: 'waves', label: 'intro' }],
      stems: true,
    },
    files: ['0 audio', '100 audio drums', '200 audio bass', '300 audio vocals', '400 audio other'],
  },
  'video-to-music': {
    fields: {
      video_url,
      prompt: 'calm',
      prompt_influence: 0.3,
      ducking: true,
    },
    files: ['0 audio'],
    // The simulator makes no m4a, and says so.
    warnings: ['other_format'],
  },
  'text-to-sfx': {
    fields: { prompt: 'a door', duration: 0.5, audio_format: 'wav' },
    files: ['0 audio'],
  },
  'video-to-sfx': {
    fields: {
      video_url,
      audio_format: 'wav',
      segments: [
        { start: 0, end: 1.5, prompt: 'steps' },
        { start: 1.5, end: 3, prompt: 'a door' },
      ],
    },
    files: ['0 audio'],
  },
  'video-to-video-music': {
    fields: { video_url, keep_original_sound: true },
    files: ['0 video'],
  },
  'video-to-video-sfx': {
    fields: { video_url, segments: [{ start: 0, end: 1, prompt: 'steps' }] },
    files: ['0 video'],
  },
  'video-to-sound': {
    fields: {
      video_url,
      music_prompt: 'calm',
      sfx_prompt: 'steps',
      segments: [{ start: 0, end: 1, prompt: 'a' }],
    },
    files: ['0 audio'],
  },
  'video-to-video-sound': {
    fields: { video_url, variants_num: 2, segments: [{ start: 0, end: 1, prompt: 'a' }] },
    files: ['0 video', '1 video'],
  },
  'audio-ducking': {
    fields: { voice_url: 'https://a.example/v.mp3', music_url: 'https://a.example/m.mp3' },
    files: ['0 audio'],
  },
  dubbing: { fields: { video_url, languages: ['es', 'zh_cn'] }, files: ['0 video es', '1 video zh_cn'] },
  'video-analysis': { fields: { video_url, variants_num: 2, mode: 'music' }, files: [] },
};

it('every operation passes preflight and the provider, and what it brings is stored', {
  timeout: 120_000,
}, async () => {
  const directory = await mkdtemp(join(tmpdir(), 'onetake-generations-'));
  onTestFinished(() => rm(directory, { recursive: true, force: true }));
  const config = { storage: { directory, allowPrivateHosts: true } };
  const world = await openWorld({ config, simulator: { runTimeMs: 1 } });
  const inputs = OPERATION_NAMES.map(
    (operation) => ({ operation, fields: EXAMPLES[operation].fields, requestKey: operation }) as EnqueueInput,
  );
  const enqueued = (await world.client.enqueue(inputs)) as { id: string }[];
  await Promise.all([world.worker().start(), world.poller().start()]);
  const settled = async (id: string): Promise<RequestDetails | undefined> => {
    const found = await world.client.get(id);
    return found?.settledAt == null ? undefined : found;
  };
  for (const [number, operation] of OPERATION_NAMES.entries()) {
    const { id } = enqueued[number] as { id: string };
    const found = await waitFor(() => settled(id), { what: `${operation} to end`, timeoutMs: 60_000 });
    const { files, warnings = [] } = EXAMPLES[operation];
    expect(found, operation).toMatchObject({ state: 'succeeded', resultStatus: 'stored', warnings });
    const described = found.files.map(({ index, kind, label }) =>
      [index, kind, label ?? ''].join(' ').trim(),
    );
    expect(described, operation).toEqual(files);
    expect(found.files.every(({ storedAt }) => storedAt !== null)).toBe(true);
    if (operation === 'video-analysis') {
      expect(found.document).toMatchObject({ segments: [{ start: 0 }, {}], variations: [{}, {}] });
    } else if (['text-to-music', 'video-to-music'].includes(operation)) {
      expect(found.document, operation).toMatchObject({ title: { title: expect.any(String) } });
    } else expect(found.document, operation).toBeNull();
  }
  expect(world.posts()).toBe(OPERATION_NAMES.length);
});
