/**
 * What the simulated provider offers: its own table, on purpose not shared with the client, since a real
 * provider doesn't share one either.
 */
export interface SimulatedOperation {
  /** The last part of `/v1/<name>`. */
  readonly name: string;
  /** As the task reports it. */
  readonly type: string;
  /**
   * `music`: `audio` is a list. `effect`: `audio` is one object. `video`: `video`, or `videos` for several.
   * `sound`, `film`: `output_url`, of a sound or a video. `languages`: `outputs`, a URL for each. `analysis`: no file.
   */
  readonly result: 'music' | 'effect' | 'video' | 'sound' | 'film' | 'languages' | 'analysis';
  /** Whether `mode` exists; where it doesn't, every call is a task. */
  readonly streams: boolean;
  readonly fields: Readonly<Record<string, FieldRule>>;
  /** Groups of which exactly one field must be sent: a file, or an https URL. */
  readonly sources: readonly (readonly [file: string, url: string])[];
}

export type FieldRule =
  | { readonly kind: 'text'; readonly required?: boolean; readonly maxLength: number }
  | { readonly kind: 'number'; readonly min: number; readonly max: number; readonly whole: boolean }
  | { readonly kind: 'choice'; readonly values: readonly string[]; readonly default: string }
  | { readonly kind: 'boolean' }
  | { readonly kind: 'languages'; readonly default: readonly string[] }
  | { readonly kind: 'segments'; readonly shape: 'music' | 'effect' };

/** Provider limits as of 2026-10; they move, which is why the client leaves them to the provider. */
const MUSIC_PROMPT = { kind: 'text', maxLength: 2_000 } as const;
const VARIANTS = { kind: 'number', min: 1, max: 10, whole: true } as const;
const MODE = { kind: 'choice', values: ['stream', 'async'], default: 'stream' } as const;
const MUSIC_FORMAT = { kind: 'choice', values: ['m4a', 'wav', 'mp3'], default: 'm4a' } as const;
const EFFECT_FORMAT = { kind: 'choice', values: ['wav', 'mp3', 'aac', 'flac'], default: 'aac' } as const;
const EFFECT_PROMPT = { kind: 'text', maxLength: 2_000 } as const;
const MUSIC_SEGMENTS = { kind: 'segments', shape: 'music' } as const;
const EFFECT_SEGMENTS = { kind: 'segments', shape: 'effect' } as const;
const INFLUENCE = { kind: 'number', min: 0, max: 1, whole: false } as const;
const BOOLEAN = { kind: 'boolean' } as const;
const VIDEO = [['video', 'video_url']] as const;

export const SIMULATED_OPERATIONS: readonly SimulatedOperation[] = [
  {
    name: 'text-to-music',
    type: 'text_to_music',
    result: 'music',
    streams: true,
    sources: [],
    fields: {
      prompt: { ...MUSIC_PROMPT, required: true },
      duration: { kind: 'number', min: 5, max: 360, whole: true },
      mode: MODE,
      output_format: MUSIC_FORMAT,
      segments: MUSIC_SEGMENTS,
      variants_num: VARIANTS,
      stems: BOOLEAN,
    },
  },
  {
    name: 'video-to-music',
    type: 'video_to_music',
    result: 'music',
    streams: true,
    sources: VIDEO,
    fields: {
      prompt: MUSIC_PROMPT,
      mode: MODE,
      output_format: MUSIC_FORMAT,
      segments: MUSIC_SEGMENTS,
      variants_num: VARIANTS,
      stems: BOOLEAN,
      preserve_speech: BOOLEAN,
      isolate_vocals: BOOLEAN,
      ducking: BOOLEAN,
      prompt_influence: INFLUENCE,
    },
  },
  {
    name: 'text-to-sfx',
    type: 'text_to_sfx',
    result: 'effect',
    streams: false,
    sources: [],
    fields: {
      prompt: { kind: 'text', required: true, maxLength: 2_000 },
      duration: { kind: 'number', min: 0.5, max: 180, whole: false },
      audio_format: EFFECT_FORMAT,
    },
  },
  {
    name: 'video-to-sfx',
    type: 'video_to_sfx',
    result: 'effect',
    streams: false,
    sources: VIDEO,
    fields: {
      prompt: EFFECT_PROMPT,
      segments: EFFECT_SEGMENTS,
      audio_format: EFFECT_FORMAT,
    },
  },
  {
    name: 'video-to-video-music',
    type: 'video_to_video_music',
    result: 'video',
    streams: false,
    sources: VIDEO,
    fields: {
      prompt: MUSIC_PROMPT,
      segments: MUSIC_SEGMENTS,
      keep_original_sound: BOOLEAN,
      ducking: BOOLEAN,
      preserve_speech: BOOLEAN,
      isolate_vocals: BOOLEAN,
      variants_num: VARIANTS,
      prompt_influence: INFLUENCE,
    },
  },
  {
    name: 'video-to-video-sfx',
    type: 'video_to_video_sfx',
    result: 'video',
    streams: false,
    sources: VIDEO,
    fields: { prompt: EFFECT_PROMPT, segments: EFFECT_SEGMENTS },
  },
  {
    name: 'video-to-sound',
    type: 'video_to_sound',
    result: 'sound',
    streams: false,
    sources: VIDEO,
    fields: {
      music_prompt: MUSIC_PROMPT,
      sfx_prompt: EFFECT_PROMPT,
      segments: EFFECT_SEGMENTS,
      preserve_speech: BOOLEAN,
      ducking: BOOLEAN,
      output_format: { ...MUSIC_FORMAT, default: 'wav' },
      variants_num: VARIANTS,
    },
  },
  {
    name: 'video-to-video-sound',
    type: 'video_to_video_sound',
    result: 'film',
    streams: false,
    sources: VIDEO,
    fields: {
      music_prompt: MUSIC_PROMPT,
      sfx_prompt: EFFECT_PROMPT,
      segments: EFFECT_SEGMENTS,
      keep_original_sound: BOOLEAN,
      preserve_speech: BOOLEAN,
      ducking: BOOLEAN,
      variants_num: VARIANTS,
    },
  },
  {
    name: 'audio-ducking',
    type: 'audio_ducking',
    result: 'sound',
    streams: false,
    sources: [
      ['voice_file', 'voice_url'],
      ['music_file', 'music_url'],
    ],
    fields: {},
  },
  {
    name: 'dubbing',
    type: 'dubbing',
    result: 'languages',
    streams: false,
    sources: VIDEO,
    fields: {
      languages: { kind: 'languages', default: ['zh_cn', 'es', 'fr'] },
      ducking: BOOLEAN,
      lipsync: BOOLEAN,
      export_srt: BOOLEAN,
    },
  },
  {
    name: 'video-analysis',
    type: 'video_analysis',
    result: 'analysis',
    streams: false,
    sources: VIDEO,
    fields: {
      prompt: EFFECT_PROMPT,
      variants_num: { ...VARIANTS, max: 5 },
      mode: { kind: 'choice', values: ['both', 'music', 'sfx'], default: 'both' },
    },
  },
];

export const SIMULATED_OPERATION_NAMES: readonly string[] = SIMULATED_OPERATIONS.map(({ name }) => name);

export function findOperation(name: string): SimulatedOperation | undefined {
  return SIMULATED_OPERATIONS.find((operation) => operation.name === name);
}
