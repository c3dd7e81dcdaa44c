import { randomBytes } from 'node:crypto';
import { box, fullBox, MATRIX, u16, u32 } from '../../src/simulator/audio/mp4-boxes.ts';

export interface VideoOptions {
  readonly seconds?: number;
  /** What the header of the whole says; default the truth. */
  readonly claimsSeconds?: number;
  /** `mp42`, `qt  `, `M4V `. */
  readonly brand?: string;
  /** `avc1`, `hvc1`, `mp4v`; null: no pictures at all. */
  readonly codec?: string | null;
  /** Of what follows the header. */
  readonly bytes?: number;
}

/** A file of boxes that says of itself what a video says, with random bytes for its pictures. */
export function videoBytes(options: VideoOptions = {}): Buffer {
  const { seconds = 10, claimsSeconds = seconds, brand = 'mp42', codec = 'avc1', bytes = 4_096 } = options;
  const duration = seconds * 1_000;
  const media = randomBytes(bytes);
  const head = Buffer.concat([
    box('ftyp', Buffer.from(`${brand}\0\0\0\0${brand}`, 'latin1')),
    box(
      'moov',
      movieHeader(claimsSeconds * 1_000),
      ...(codec === null ? [] : [track(codec, duration, bytes)]),
    ),
  ]);
  return Buffer.concat([head, box('mdat', media)]);
}

function movieHeader(duration: number): Buffer {
  return fullBox(
    'mvhd',
    u32(0, 0, 1_000, duration, 0x10000),
    u16(0x0100, 0),
    u32(0, 0),
    MATRIX,
    u32(...zeros(6), 2),
  );
}

function track(codec: string, duration: number, bytes: number): Buffer {
  const picture = box(
    codec,
    Buffer.alloc(6),
    u16(1),
    Buffer.alloc(16),
    u16(640, 360),
    u32(0x480000, 0x480000, 0),
    u16(1),
    Buffer.alloc(32),
    u16(24, 0xffff),
  );
  return box(
    'trak',
    fullBox('tkhd', u32(0, 0, 1, 0, duration, 0, 0), u16(0, 0, 0, 0), MATRIX, u32(640 << 16, 360 << 16)),
    box(
      'mdia',
      fullBox('mdhd', u32(0, 0, 1_000, duration), u16(0x55c4, 0)),
      fullBox('hdlr', u32(0), Buffer.from('vide'), Buffer.alloc(13)),
      box(
        'minf',
        fullBox('vmhd', Buffer.alloc(8)),
        box('dinf', fullBox('dref', u32(1), fullBox('url '))),
        box(
          'stbl',
          fullBox('stsd', u32(1), picture),
          fullBox('stts', u32(1, 1, duration)),
          fullBox('stsc', u32(1, 1, 1, 1)),
          fullBox('stsz', u32(bytes, 1)),
          fullBox('stco', u32(1, 1_024)),
        ),
      ),
    ),
  );
}

const zeros = (count: number): number[] => Array.from({ length: count }, () => 0);
