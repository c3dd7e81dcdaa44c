// The fields of each operation as an app writes them; `operations.ts` has what becomes of them on the wire.

export interface Segment {
  readonly start: number;
  readonly prompt: string;
  readonly label?: string;
}

/** Contiguous: each begins where the one before it ends. */
export interface EffectSegment {
  readonly start: number;
  readonly end: number;
  readonly prompt: string;
}

/** A file that this process can read now, and the worker later, under the same path. */
export interface LocalFile {
  readonly file: string;
}

/** Exactly one of the two. */
export type VideoSource =
  | { readonly video_url: string; readonly video?: undefined }
  | { readonly video: LocalFile; readonly video_url?: undefined };

type MusicFormat = 'm4a' | 'wav' | 'mp3';
type EffectFormat = 'aac' | 'wav' | 'mp3' | 'flac';

export interface TextToMusicFields {
  readonly prompt: string;
  /** Seconds. Left out, the provider infers it from the prompt. */
  readonly duration?: number;
  readonly output_format?: MusicFormat;
  readonly segments?: readonly Segment[];
  /** The price is multiplied by it. */
  readonly variants_num?: number;
  readonly stems?: boolean;
}

export type VideoToMusicFields = VideoSource & {
  readonly prompt?: string;
  readonly output_format?: MusicFormat;
  readonly segments?: readonly Segment[];
  readonly variants_num?: number;
  readonly stems?: boolean;
  readonly preserve_speech?: boolean;
  readonly ducking?: boolean;
  /** 0 to 1. */
  readonly prompt_influence?: number;
};

export interface TextToSfxFields {
  readonly prompt: string;
  /** Seconds, with fractions. Left out: 8. */
  readonly duration?: number;
  readonly audio_format?: EffectFormat;
}

export type VideoToSfxFields = VideoSource & {
  readonly prompt?: string;
  readonly segments?: readonly EffectSegment[];
  readonly audio_format?: EffectFormat;
};

export type VideoToVideoMusicFields = VideoSource & {
  readonly prompt?: string;
  readonly segments?: readonly Segment[];
  readonly variants_num?: number;
  readonly keep_original_sound?: boolean;
  readonly preserve_speech?: boolean;
  readonly ducking?: boolean;
  /** 0 to 1. */
  readonly prompt_influence?: number;
};

export type VideoToVideoSfxFields = VideoSource & {
  readonly prompt?: string;
  readonly segments?: readonly EffectSegment[];
};

interface SoundFields {
  readonly music_prompt?: string;
  readonly sfx_prompt?: string;
  readonly segments?: readonly EffectSegment[];
  readonly variants_num?: number;
  readonly preserve_speech?: boolean;
  readonly ducking?: boolean;
}

export type VideoToSoundFields = VideoSource & SoundFields & { readonly output_format?: MusicFormat };

export type VideoToVideoSoundFields = VideoSource & SoundFields & { readonly keep_original_sound?: boolean };

/** Of each pair exactly one. */
export type AudioDuckingFields = (
  | { readonly voice_url: string; readonly voice_file?: undefined }
  | { readonly voice_file: LocalFile; readonly voice_url?: undefined }
) &
  (
    | { readonly music_url: string; readonly music_file?: undefined }
    | { readonly music_file: LocalFile; readonly music_url?: undefined }
  );

export type DubbingFields = VideoSource & {
  /** Such as `es`; each is paid for. */
  readonly languages: readonly string[];
  readonly ducking?: boolean;
  readonly lipsync?: boolean;
  readonly export_srt?: boolean;
};

export type VideoAnalysisFields = VideoSource & {
  readonly prompt?: string;
  /** Briefs; the price is multiplied by it. */
  readonly variants_num?: number;
  readonly mode?: 'both' | 'music' | 'sfx';
};

/** By operation. */
export interface OperationFields {
  'text-to-music': TextToMusicFields;
  'video-to-music': VideoToMusicFields;
  'text-to-sfx': TextToSfxFields;
  'video-to-sfx': VideoToSfxFields;
  'video-to-video-music': VideoToVideoMusicFields;
  'video-to-video-sfx': VideoToVideoSfxFields;
  'video-to-sound': VideoToSoundFields;
  'video-to-video-sound': VideoToVideoSoundFields;
  'audio-ducking': AudioDuckingFields;
  dubbing: DubbingFields;
  'video-analysis': VideoAnalysisFields;
}
