/**
 * What the simulated provider offers: its own table, on purpose not shared with the client, since a real
 * provider doesn't share one either. Endpoints that would have to answer with a video are not offered.
 */
export interface SimulatedOperation {
  /** The last part of `/v1/<name>`. */
  readonly name: string;
  /** As the task reports it. */
  readonly type: string;
  /** `music`: `audio` is a list. `effect`: `audio` is one object. `file`: `output_url`. */
  readonly result: 'music' | 'effect' | 'file';
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
  | { readonly kind: 'segments'; readonly shape: 'music' | 'effect' };

/** Provider limits as of 2026-10; they move, which is why the client leaves them to the provider. */
const MUSIC_PROMPT = { kind: 'text', maxLength: 2_000 } as const;
const VARIANTS = { kind: 'number', min: 1, max: 10, whole: true } as const;
const MODE = { kind: 'choice', values: ['stream', 'async'], default: 'stream' } as const;
const MUSIC_FORMAT = { kind: 'choice', values: ['m4a', 'wav', 'mp3'], default: 'm4a' } as const;
const EFFECT_FORMAT = { kind: 'choice', values: ['wav', 'mp3', 'aac', 'flac'], default: 'aac' } as const;
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
      segments: { kind: 'segments', shape: 'music' },
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
      segments: { kind: 'segments', shape: 'music' },
      variants_num: VARIANTS,
      stems: BOOLEAN,
      preserve_speech: BOOLEAN,
      isolate_vocals: BOOLEAN,
      ducking: BOOLEAN,
      prompt_influence: { kind: 'number', min: 0, max: 1, whole: false },
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
      prompt: { kind: 'text', maxLength: 2_000 },
      segments: { kind: 'segments', shape: 'effect' },
      audio_format: EFFECT_FORMAT,
    },
  },
  {
    name: 'video-to-sound',
    type: 'video_to_sound',
    result: 'file',
    streams: false,
    sources: VIDEO,
    fields: {
      music_prompt: MUSIC_PROMPT,
      sfx_prompt: { kind: 'text', maxLength: 2_000 },
      segments: { kind: 'segments', shape: 'effect' },
      preserve_speech: BOOLEAN,
      ducking: BOOLEAN,
      output_format: { ...MUSIC_FORMAT, default: 'wav' },
      variants_num: VARIANTS,
    },
  },
  {
    name: 'audio-ducking',
    type: 'audio_ducking',
    result: 'file',
    streams: false,
    sources: [
      ['voice_file', 'voice_url'],
      ['music_file', 'music_url'],
    ],
    fields: {},
  },
];

export const SIMULATED_OPERATION_NAMES: readonly string[] = SIMULATED_OPERATIONS.map(({ name }) => name);

export function findOperation(name: string): SimulatedOperation | undefined {
  return SIMULATED_OPERATIONS.find((operation) => operation.name === name);
}
