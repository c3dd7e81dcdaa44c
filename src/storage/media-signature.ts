/** The formats we recognise by their first bytes, named by the extension of a stored file. */
export type MediaFormat = 'aac' | 'aiff' | 'flac' | 'm4a' | 'mp3' | 'mp4' | 'ogg' | 'wav' | 'webm';

/** As many first bytes as `detectMediaFormat` wants to see: WebM names itself a few fields into its header. */
export const SIGNATURE_BYTES = 64;

// The first type of each list is the one we store when nobody named one that fits.
const CONTENT_TYPES: Readonly<Record<MediaFormat, readonly string[]>> = {
  aac: ['audio/aac', 'audio/aacp', 'audio/x-aac', 'audio/x-hx-aac-adts', 'audio/vnd.dlna.adts'],
  aiff: ['audio/aiff', 'audio/x-aiff'],
  flac: ['audio/flac', 'audio/x-flac'],
  m4a: ['audio/mp4', 'audio/m4a', 'audio/x-m4a', 'audio/mp4a-latm'],
  mp3: ['audio/mpeg', 'audio/mp3', 'audio/x-mp3', 'audio/x-mpeg', 'audio/mpeg3'],
  mp4: ['video/mp4', 'video/quicktime', 'video/x-m4v'],
  ogg: ['audio/ogg', 'application/ogg', 'audio/opus', 'audio/vorbis', 'video/ogg'],
  wav: ['audio/wav', 'audio/x-wav', 'audio/wave', 'audio/vnd.wave'],
  webm: ['audio/webm', 'video/webm'],
};

/**
 * Null when the bytes are no media that we know: an error page, a JSON answer, an empty file. MP4 with
 * sound only and with pictures begin alike; `contentType` (bare, lower case) tells them apart.
 */
export function detectMediaFormat(head: Buffer, contentType: string | null): MediaFormat | null {
  const tag = (from: number, to: number) => head.toString('latin1', from, to);
  const first = tag(0, 4);
  if (/^(RIFF|RF64|BW64)$/.test(first) && tag(8, 12) === 'WAVE') return 'wav';
  if (first === 'FORM' && /^AIF[FC]$/.test(tag(8, 12))) return 'aiff';
  if (tag(4, 8) === 'ftyp') return contentType?.startsWith('video/') === true ? 'mp4' : 'm4a';
  if (first === 'fLaC') return 'flac';
  if (first === 'OggS') return 'ogg';
  if (first === '\x1aE\xdf\xa3' && tag(4, SIGNATURE_BYTES).includes('webm')) return 'webm';
  if (tag(0, 3) === 'ID3') return 'mp3';
  return detectFrameSync(head);
}

/** MPEG audio has no magic number, only eleven set bits: check the fields behind them for reserved values. */
function detectFrameSync(head: Buffer): MediaFormat | null {
  const [sync, version, rates] = [head[0], head[1], head[2]];
  if (sync !== 0xff || version === undefined || rates === undefined || (version & 0xe0) !== 0xe0) return null;
  const layer = (version >> 1) & 0b11;
  if (layer === 0) {
    const sampleRateIndex = (rates >> 2) & 0b1111;
    return (version & 0xf0) === 0xf0 && sampleRateIndex < 13 ? 'aac' : null;
  }
  const reservedVersion = ((version >> 3) & 0b11) === 0b01;
  const badBitrate = rates >> 4 === 0b1111;
  const reservedSampleRate = ((rates >> 2) & 0b11) === 0b11;
  return reservedVersion || badBitrate || reservedSampleRate ? null : 'mp3';
}

/** Bare and in lower case; null for nothing, for nonsense, and for types that say nothing. */
export function bareContentType(value: string | null | undefined): string | null {
  const bare = value?.split(';', 1)[0]?.trim().toLowerCase() ?? '';
  if (!/^[a-z0-9][a-z0-9.+-]{0,62}\/[a-z0-9][a-z0-9.+-]{0,62}$/.test(bare)) return null;
  return bare === 'application/octet-stream' || bare === 'binary/octet-stream' ? null : bare;
}

/** The type to store for a file of `format`, and whether that contradicts what was announced. */
export function settleContentType(
  format: MediaFormat,
  announced: string | null,
): { readonly contentType: string; readonly differs: boolean } {
  const known = CONTENT_TYPES[format];
  if (announced !== null && known.includes(announced)) return { contentType: announced, differs: false };
  return { contentType: known[0] as string, differs: announced !== null };
}
