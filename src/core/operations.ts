import { OnetakeError, suggestion } from './errors.ts';

export interface Segment {
  readonly start: number;
  readonly prompt: string;
  readonly label?: string;
}

export interface TextToMusicFields {
  readonly prompt: string;
  /** Seconds. Left out, the provider infers it from the prompt. */
  readonly duration?: number;
  readonly output_format?: 'm4a' | 'wav' | 'mp3';
  readonly segments?: readonly Segment[];
  /** The price is multiplied by it. */
  readonly variants_num?: number;
  readonly stems?: boolean;
}

/** A file that this process can read now, and the worker later, under the same path. */
export interface LocalFile {
  readonly file: string;
}

/** Exactly one of the two. */
export type VideoSource =
  | { readonly video_url: string; readonly video?: undefined }
  | { readonly video: LocalFile; readonly video_url?: undefined };

export type VideoToMusicFields = VideoSource & {
  readonly prompt?: string;
  readonly output_format?: 'm4a' | 'wav' | 'mp3';
  readonly segments?: readonly Segment[];
  readonly variants_num?: number;
  readonly stems?: boolean;
  readonly preserve_speech?: boolean;
  readonly ducking?: boolean;
  /** 0 to 1. */
  readonly prompt_influence?: number;
};

/** Contiguous: each begins where the one before it ends. */
export interface EffectSegment {
  readonly start: number;
  readonly end: number;
  readonly prompt: string;
}

export interface TextToSfxFields {
  readonly prompt: string;
  /** Seconds, with fractions. Left out: 8. */
  readonly duration?: number;
  readonly audio_format?: 'aac' | 'wav' | 'mp3' | 'flac';
}

export type VideoToSfxFields = VideoSource & {
  readonly prompt?: string;
  readonly segments?: readonly EffectSegment[];
  readonly audio_format?: 'aac' | 'wav' | 'mp3' | 'flac';
};

/** The fields of each operation, by its name. */
export interface OperationFields {
  'text-to-music': TextToMusicFields;
  'video-to-music': VideoToMusicFields;
  'text-to-sfx': TextToSfxFields;
  'video-to-sfx': VideoToSfxFields;
}

export type OperationName = keyof OperationFields;

/** Form fields as they go on the wire, fixed at enqueue: what is sent is what is stored. */
export type EncodedFields = Readonly<Record<string, string>>;

export type FieldType = 'string' | 'integer' | 'number' | 'boolean' | 'json' | 'file';

export interface FieldSpec {
  readonly type: FieldType;
  readonly required?: true;
  /** The provider fetches it: checked for its shape. */
  readonly url?: true;
}

/**
 * One entry is one operation. Only those whose finished task the poller can read: the provider has others, that
 * answer with a video, with a file per language or with no media at all.
 */
export interface Operation {
  readonly path: string;
  readonly fields: Readonly<Record<string, FieldSpec>>;
  /** Groups of fields of which exactly one is needed. */
  readonly oneOf?: readonly (readonly string[])[];
  /** Where a finished task keeps its media: `audio`, a list for music and one object for effects. */
  readonly result: 'audio';
  /** The provider's own ceiling; after it a task is overdue and its slot is given back. */
  readonly maxRunMs: number;
  /**
   * What we send where the caller says nothing. The provider has changed defaults without a version, so
   * nothing that is paid for relies on them.
   */
  readonly defaults: EncodedFields;
  /** What these fields have to be where `mode` is `stream`; an operation without it knows no `mode`. */
  readonly whenStreamed?: EncodedFields;
}

const MUSIC_FIELDS = {
  output_format: { type: 'string' },
  segments: { type: 'json' },
  variants_num: { type: 'integer' },
  stems: { type: 'boolean' },
} as const;

const MUSIC_DEFAULTS = { mode: 'async', output_format: 'm4a', variants_num: '1', stems: 'false' } as const;
const MUSIC_STREAMED = { output_format: 'm4a', variants_num: '1', stems: 'false' } as const;
const VIDEO = { video: { type: 'file' }, video_url: { type: 'string', url: true } } as const;
const VIDEO_OR_URL = [['video', 'video_url']] as const;
const TEN_MINUTES_MS = 600_000;

export const OPERATIONS: Readonly<Record<OperationName, Operation>> = {
  'text-to-music': {
    path: '/v1/text-to-music',
    fields: { prompt: { type: 'string', required: true }, duration: { type: 'integer' }, ...MUSIC_FIELDS },
    result: 'audio',
    maxRunMs: TEN_MINUTES_MS,
    defaults: MUSIC_DEFAULTS,
    whenStreamed: MUSIC_STREAMED,
  },
  'video-to-music': {
    path: '/v1/video-to-music',
    fields: {
      ...VIDEO,
      prompt: { type: 'string' },
      preserve_speech: { type: 'boolean' },
      ducking: { type: 'boolean' },
      prompt_influence: { type: 'number' },
      ...MUSIC_FIELDS,
    },
    oneOf: VIDEO_OR_URL,
    result: 'audio',
    maxRunMs: TEN_MINUTES_MS,
    defaults: { ...MUSIC_DEFAULTS, preserve_speech: 'false', ducking: 'false', prompt_influence: '0.5' },
    whenStreamed: { ...MUSIC_STREAMED, preserve_speech: 'false', ducking: 'false' },
  },
  'text-to-sfx': {
    path: '/v1/text-to-sfx',
    fields: {
      prompt: { type: 'string', required: true },
      duration: { type: 'number' },
      audio_format: { type: 'string' },
    },
    result: 'audio',
    maxRunMs: TEN_MINUTES_MS,
    // Billed by the second: its length is never the provider's to choose.
    defaults: { duration: '8', audio_format: 'aac' },
  },
  'video-to-sfx': {
    path: '/v1/video-to-sfx',
    fields: {
      ...VIDEO,
      prompt: { type: 'string' },
      segments: { type: 'json' },
      audio_format: { type: 'string' },
    },
    oneOf: VIDEO_OR_URL,
    result: 'audio',
    maxRunMs: TEN_MINUTES_MS,
    defaults: { audio_format: 'aac' },
  },
};

export const OPERATION_NAMES = Object.keys(OPERATIONS) as OperationName[];

export function isOperationName(name: string): name is OperationName {
  return Object.hasOwn(OPERATIONS, name);
}

/** The operation, or `unknown_operation` with a suggestion. */
export function operationNamed(name: string): Operation {
  if (isOperationName(name)) return OPERATIONS[name];
  const near = typeof name === 'string' ? suggestion(name, OPERATION_NAMES) : '';
  throw new OnetakeError('unknown_operation', `Unknown operation${shown(name)}.${near}`, {
    hint: `Known operations: ${OPERATION_NAMES.join(', ')}.`,
  });
}

/** What goes on the wire: the caller's fields over our defaults. */
export function wireFields(operationName: string, encoded: EncodedFields): EncodedFields {
  return { ...operationNamed(operationName).defaults, ...encoded };
}

/** A hostile or mistaken name is customer data too: only a short, plain one is repeated. */
export function shown(name: string): string {
  return /^[A-Za-z0-9_.-]{1,40}$/.test(name) ? ` "${name}"` : '';
}
