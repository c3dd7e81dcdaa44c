import { OnetakeError, suggestion } from './errors.ts';
import type { OperationFields } from './operation-fields.ts';

export type {
  EffectSegment,
  LocalFile,
  OperationFields,
  Segment,
  VideoSource,
} from './operation-fields.ts';

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

/** Where a finished task keeps what was ordered. */
export type ResultShape =
  /** `audio`, a list by `stream_index` for music and one object for effects; `stems` and the like beside it. */
  | 'audio'
  /** `video` or `videos`. */
  | 'video'
  /** `output_url`, or `outputs`, a list by `variant_index`. */
  | 'output'
  /** `outputs`, an object: a URL for each language. */
  | 'languages'
  /** No file: `segments` and `variations` are the result. */
  | 'analysis';

/** One entry is one operation. */
export interface Operation {
  readonly path: string;
  readonly fields: Readonly<Record<string, FieldSpec>>;
  /** Groups of fields of which exactly one is needed. */
  readonly oneOf?: readonly (readonly string[])[];
  readonly result: ResultShape;
  /** The field that orders the format of the sound. */
  readonly format?: string;
  /** The provider's own ceiling; after it a task is overdue and its slot is given back. */
  readonly maxRunMs: number;
  /** With this field `true` a task may run so long before it is overdue. */
  readonly longer?: { readonly field: string; readonly maxRunMs: number };
  /**
   * What we send where the caller says nothing. The provider has changed defaults without a version, so
   * nothing that is paid for relies on them.
   */
  readonly defaults: EncodedFields;
  /** What these fields have to be where `mode` is `stream`; an operation without it knows no such `mode`. */
  readonly whenStreamed?: EncodedFields;
}

const TEXT = { type: 'string' } as const;
const FLAG = { type: 'boolean' } as const;
const LIST = { type: 'json' } as const;
const COUNT = { type: 'integer' } as const;
const FILE = { type: 'file' } as const;
const LINK = { type: 'string', url: true } as const;

const MUSIC_FIELDS = { output_format: TEXT, segments: LIST, variants_num: COUNT, stems: FLAG } as const;
const MUSIC_DEFAULTS = { mode: 'async', output_format: 'm4a', variants_num: '1', stems: 'false' } as const;
const MUSIC_STREAMED = { output_format: 'm4a', variants_num: '1', stems: 'false' } as const;
const MIX_FIELDS = { preserve_speech: FLAG, ducking: FLAG } as const;
const MIX_DEFAULTS = { preserve_speech: 'false', ducking: 'false' } as const;
const SOUND_FIELDS = {
  music_prompt: TEXT,
  sfx_prompt: TEXT,
  segments: LIST,
  variants_num: COUNT,
  ...MIX_FIELDS,
};
const VIDEO = { video: FILE, video_url: LINK } as const;
const VIDEO_OR_URL = [['video', 'video_url']] as const;
const MINUTE_MS = 60_000;
const TEN_MINUTES_MS = 10 * MINUTE_MS;
/** Separation begins when the music is there, and the provider gives it up after half an hour. */
const WITH_STEMS = { field: 'stems', maxRunMs: 40 * MINUTE_MS } as const;

export const OPERATIONS: Readonly<Record<OperationName, Operation>> = {
  'text-to-music': {
    path: '/v1/text-to-music',
    fields: { prompt: { ...TEXT, required: true }, duration: COUNT, ...MUSIC_FIELDS },
    result: 'audio',
    format: 'output_format',
    maxRunMs: TEN_MINUTES_MS,
    longer: WITH_STEMS,
    defaults: MUSIC_DEFAULTS,
    whenStreamed: MUSIC_STREAMED,
  },
  'video-to-music': {
    path: '/v1/video-to-music',
    fields: { ...VIDEO, prompt: TEXT, ...MIX_FIELDS, prompt_influence: { type: 'number' }, ...MUSIC_FIELDS },
    oneOf: VIDEO_OR_URL,
    result: 'audio',
    format: 'output_format',
    maxRunMs: TEN_MINUTES_MS,
    longer: WITH_STEMS,
    defaults: { ...MUSIC_DEFAULTS, ...MIX_DEFAULTS, prompt_influence: '0.5' },
    whenStreamed: { ...MUSIC_STREAMED, ...MIX_DEFAULTS },
  },
  'text-to-sfx': {
    path: '/v1/text-to-sfx',
    fields: { prompt: { ...TEXT, required: true }, duration: { type: 'number' }, audio_format: TEXT },
    result: 'audio',
    format: 'audio_format',
    maxRunMs: TEN_MINUTES_MS,
    // Billed by the second: its length is never the provider's to choose.
    defaults: { duration: '8', audio_format: 'aac' },
  },
  'video-to-sfx': {
    path: '/v1/video-to-sfx',
    fields: { ...VIDEO, prompt: TEXT, segments: LIST, audio_format: TEXT },
    oneOf: VIDEO_OR_URL,
    result: 'audio',
    format: 'audio_format',
    maxRunMs: TEN_MINUTES_MS,
    defaults: { audio_format: 'aac' },
  },
  'video-to-video-music': {
    path: '/v1/video-to-video-music',
    fields: {
      ...VIDEO,
      prompt: TEXT,
      segments: LIST,
      keep_original_sound: FLAG,
      ...MIX_FIELDS,
      prompt_influence: { type: 'number' },
      variants_num: COUNT,
    },
    oneOf: VIDEO_OR_URL,
    result: 'video',
    maxRunMs: TEN_MINUTES_MS,
    defaults: { keep_original_sound: 'false', ...MIX_DEFAULTS, prompt_influence: '0.5', variants_num: '1' },
  },
  'video-to-video-sfx': {
    path: '/v1/video-to-video-sfx',
    fields: { ...VIDEO, prompt: TEXT, segments: LIST },
    oneOf: VIDEO_OR_URL,
    result: 'video',
    maxRunMs: TEN_MINUTES_MS,
    defaults: {},
  },
  'video-to-sound': {
    path: '/v1/video-to-sound',
    fields: { ...VIDEO, ...SOUND_FIELDS, output_format: TEXT },
    oneOf: VIDEO_OR_URL,
    result: 'output',
    format: 'output_format',
    maxRunMs: TEN_MINUTES_MS,
    defaults: { ...MIX_DEFAULTS, output_format: 'wav', variants_num: '1' },
  },
  'video-to-video-sound': {
    path: '/v1/video-to-video-sound',
    fields: { ...VIDEO, ...SOUND_FIELDS, keep_original_sound: FLAG },
    oneOf: VIDEO_OR_URL,
    result: 'output',
    maxRunMs: TEN_MINUTES_MS,
    defaults: { ...MIX_DEFAULTS, keep_original_sound: 'false', variants_num: '1' },
  },
  'audio-ducking': {
    path: '/v1/audio-ducking',
    fields: { voice_file: FILE, voice_url: LINK, music_file: FILE, music_url: LINK },
    oneOf: [
      ['voice_file', 'voice_url'],
      ['music_file', 'music_url'],
    ],
    result: 'output',
    maxRunMs: TEN_MINUTES_MS,
    defaults: {},
  },
  dubbing: {
    path: '/v1/dubbing',
    // Billed by the language: the provider's own choice of three is nobody's.
    fields: {
      ...VIDEO,
      languages: { ...LIST, required: true },
      ducking: FLAG,
      lipsync: FLAG,
      export_srt: FLAG,
    },
    oneOf: VIDEO_OR_URL,
    result: 'languages',
    maxRunMs: 120 * MINUTE_MS,
    defaults: { ducking: 'false', lipsync: 'true', export_srt: 'false' },
  },
  'video-analysis': {
    path: '/v1/video-analysis',
    fields: { ...VIDEO, prompt: TEXT, variants_num: COUNT, mode: TEXT },
    oneOf: VIDEO_OR_URL,
    result: 'analysis',
    maxRunMs: TEN_MINUTES_MS,
    defaults: { variants_num: '1', mode: 'both' },
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
