import { box, fullBox, MATRIX, u16, u32 } from './mp4-boxes.ts';

/**
 * What stands before the samples of an MP4 file that holds the sound alone, 16-bit and mono: as much of a video as
 * anything that brings one in looks at. The samples follow as one chunk.
 */
export function mp4Header(sampleRate: number, samples: number): Buffer {
  const type = box('ftyp', Buffer.from('mp42\0\0\0\0mp42isom', 'latin1'));
  // Its own length is a part of it, and the same for every offset.
  const offset = type.length + movie(sampleRate, samples, 0).length + 8;
  const data = Buffer.concat([u32(samples * 2 + 8), Buffer.from('mdat', 'latin1')]);
  return Buffer.concat([type, movie(sampleRate, samples, offset), data]);
}

function movie(sampleRate: number, samples: number, offset: number): Buffer {
  const header = fullBox(
    'mvhd',
    u32(0, 0, sampleRate, samples, 0x10000),
    u16(0x0100, 0),
    u32(0, 0),
    MATRIX,
    u32(0, 0, 0, 0, 0, 0, 2),
  );
  return box('moov', header, track(sampleRate, samples, offset));
}

function track(sampleRate: number, samples: number, offset: number): Buffer {
  const sound = box(
    'sowt',
    Buffer.alloc(6),
    u16(1),
    Buffer.alloc(8),
    u16(1, 16, 0, 0),
    u32(sampleRate << 16),
  );
  const table = box(
    'stbl',
    fullBox('stsd', u32(1), sound),
    fullBox('stts', u32(1, samples, 1)),
    fullBox('stsc', u32(1, 1, samples, 1)),
    fullBox('stsz', u32(2, samples)),
    fullBox('stco', u32(1, offset)),
  );
  const handler = fullBox('hdlr', u32(0), Buffer.from('soun', 'latin1'), Buffer.alloc(13));
  const information = box(
    'minf',
    fullBox('smhd', u32(0)),
    box('dinf', fullBox('dref', u32(1), Buffer.concat([u32(12), Buffer.from('url ', 'latin1'), u32(1)]))),
    table,
  );
  return box(
    'trak',
    fullBox('tkhd', u32(0, 0, 1, 0, samples, 0, 0), u16(0, 0, 0x0100, 0), MATRIX, u32(0, 0)),
    box('mdia', fullBox('mdhd', u32(0, 0, sampleRate, samples), u16(0x55c4, 0)), handler, information),
  );
}
