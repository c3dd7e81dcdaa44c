import type { OperationName } from './operations.ts';

/**
 * The provider's numbers as they were published on this day. They move without a version: whatever isn't here is
 * left to its own 4xx, which costs nothing, and `operations.*.limits` of the configuration overrides what is.
 */
export const LIMITS_AS_OF = '2026-10-07';

export interface TextLimit {
  readonly kind: 'text';
  /** Characters, each code point one. */
  readonly maxLength: number;
}

/** Both ends included. */
export interface NumberLimit {
  readonly kind: 'number';
  readonly min: number;
  readonly max: number;
}

export interface ChoiceLimit {
  readonly kind: 'choice';
  readonly values: readonly string[];
}

/** The first starts at 0, and there is at least one. */
export interface SegmentsLimit {
  readonly kind: 'segments';
  /** `starts`: each goes on until the next one. `contiguous`: each has an end, where the next one starts. */
  readonly order: 'starts' | 'contiguous';
  readonly maxCount: number;
  readonly maxPromptLength: number;
  /** Seconds from start to start, and from the last one to `duration`. */
  readonly minSpacing: number;
  /** Left out: not looked at. */
  readonly labels?: readonly string[];
  /** Characters of the JSON. */
  readonly maxLength?: number;
}

/** Of a local file. */
export interface MediaLimit {
  readonly kind: 'media';
  readonly maxBytes: number;
  readonly maxSeconds: number;
  /** Left out, as for sound: not looked at. */
  readonly containers?: readonly string[];
  /** Of its pictures; left out: it needs none. */
  readonly codecs?: readonly string[];
}

export type FieldLimit = TextLimit | NumberLimit | ChoiceLimit | SegmentsLimit | MediaLimit;

/** By field; a field without one isn't looked at. */
export type FieldLimits = Readonly<Record<string, FieldLimit>>;

export type OperationLimits = Readonly<Record<OperationName, FieldLimits>>;

/** What a configuration says of one field: other numbers, or that the provider alone judges it. */
export type LimitSetting =
  | false
  | {
      /** Of a text, in characters; of a list, in characters of its JSON. */
      readonly maxLength?: number;
      readonly min?: number;
      readonly max?: number;
      readonly values?: readonly string[];
      /** Of a list of segments, as the next ones. */
      readonly maxCount?: number;
      readonly maxPromptLength?: number;
      /** Seconds. */
      readonly minSpacing?: number;
      readonly labels?: readonly string[];
      /** Of a file, as the next ones. */
      readonly maxBytes?: number;
      readonly maxSeconds?: number;
      readonly containers?: readonly string[];
      readonly codecs?: readonly string[];
    };

const PROMPT: TextLimit = { kind: 'text', maxLength: 2_000 };
const MUSIC_FORMAT: ChoiceLimit = { kind: 'choice', values: ['m4a', 'wav', 'mp3'] };
const EFFECT_FORMAT: ChoiceLimit = { kind: 'choice', values: ['aac', 'wav', 'mp3', 'flac'] };
const VARIANTS: NumberLimit = { kind: 'number', min: 1, max: 10 };

const MUSIC_SEGMENTS: SegmentsLimit = {
  kind: 'segments',
  order: 'starts',
  maxCount: 30,
  maxPromptLength: 200,
  minSpacing: 5,
  labels: ['intro', 'verse', 'pre-chorus', 'chorus', 'bridge', 'break', 'silence', 'outro', 'none'],
};
const EFFECT_SEGMENTS: SegmentsLimit = {
  kind: 'segments',
  order: 'contiguous',
  maxCount: 30,
  maxPromptLength: 200,
  minSpacing: 0,
  maxLength: 40_000,
};

const VIDEO: MediaLimit = {
  kind: 'media',
  maxBytes: 300 * 1_048_576,
  maxSeconds: 360,
  containers: ['mp4', 'mov', 'm4v', 'webm'],
  codecs: ['avc', 'hevc', 'vp9', 'av1'],
};

const SOUND: MediaLimit = { kind: 'media', maxBytes: 300 * 1_048_576, maxSeconds: 360 };
const INFLUENCE: NumberLimit = { kind: 'number', min: 0, max: 1 };

export const FIELD_LIMITS: OperationLimits = {
  'text-to-music': {
    prompt: PROMPT,
    duration: { kind: 'number', min: 5, max: 360 },
    output_format: MUSIC_FORMAT,
    segments: MUSIC_SEGMENTS,
    variants_num: VARIANTS,
  },
  'video-to-music': {
    video: VIDEO,
    prompt: PROMPT,
    output_format: MUSIC_FORMAT,
    segments: MUSIC_SEGMENTS,
    variants_num: VARIANTS,
    prompt_influence: INFLUENCE,
  },
  'text-to-sfx': {
    prompt: PROMPT,
    duration: { kind: 'number', min: 0.5, max: 180 },
    audio_format: EFFECT_FORMAT,
  },
  'video-to-sfx': {
    video: { ...VIDEO, maxSeconds: 480 },
    prompt: PROMPT,
    segments: EFFECT_SEGMENTS,
    audio_format: EFFECT_FORMAT,
  },
  'video-to-video-music': {
    video: VIDEO,
    prompt: PROMPT,
    segments: MUSIC_SEGMENTS,
    variants_num: VARIANTS,
    prompt_influence: INFLUENCE,
  },
  'video-to-video-sfx': { video: VIDEO, prompt: PROMPT, segments: EFFECT_SEGMENTS },
  'video-to-sound': {
    video: VIDEO,
    music_prompt: PROMPT,
    sfx_prompt: PROMPT,
    output_format: MUSIC_FORMAT,
    variants_num: VARIANTS,
  },
  'video-to-video-sound': { video: VIDEO, music_prompt: PROMPT, sfx_prompt: PROMPT, variants_num: VARIANTS },
  'audio-ducking': { voice_file: SOUND, music_file: SOUND },
  dubbing: { video: { ...VIDEO, maxSeconds: 300 } },
  'video-analysis': {
    video: { ...VIDEO, maxSeconds: 480 },
    prompt: PROMPT,
    variants_num: { kind: 'number', min: 1, max: 5 },
    mode: { kind: 'choice', values: ['both', 'music', 'sfx'] },
  },
};

/** Our limits of an operation, with what is set of them in place. */
export function limitsWith(
  operation: OperationName,
  settings: Readonly<Record<string, LimitSetting>>,
): FieldLimits {
  return Object.fromEntries(
    Object.entries(FIELD_LIMITS[operation]).flatMap(([field, limit]) => {
      const setting = settings[field];
      return setting === false ? [] : [[field, { ...limit, ...setting }]];
    }),
  );
}
