import { mp4Header } from './mp4.ts';
import { compose, type Note } from './score.ts';
import { render, SAMPLE_RATE } from './synthesis.ts';

/** What the sound is in: a WAV file, or an MP4 file that stands for a video. */
export type AudioContainer = 'wav' | 'mp4';

/** A file that exists only where it is read. */
export interface AudioFile {
  readonly contentType: 'audio/wav' | 'video/mp4';
  readonly byteLength: number;
  readonly sampleRate: number;
  /** Bytes `start` to `end` (exclusive), rendered or from the cache. Ask for about a second at a time. */
  read(start: number, end: number): Buffer;
}

/** How much is read, rendered and kept at once: one second. */
export const CHUNK_BYTES = SAMPLE_RATE * 2;
const WAV_HEADER_BYTES = 44;
const CACHED_CHUNKS = 512;
const CACHED_SCORES = 64;

/** Opens files by what they are made from; the same seed and length are rendered once while cached. */
export class AudioRenderer {
  readonly #chunks = new Map<string, Buffer>();
  readonly #scores = new Map<string, readonly Note[]>();

  open(seed: string, seconds: number, container: AudioContainer = 'wav'): AudioFile {
    const samples = Math.max(1, Math.round(seconds * SAMPLE_RATE));
    const key = `${seconds} ${seed}`;
    const header = container === 'wav' ? wavHeader(samples * 2) : mp4Header(SAMPLE_RATE, samples);
    const headerBytes = header.length;
    const byteLength = headerBytes + samples * 2;
    return {
      contentType: container === 'wav' ? 'audio/wav' : 'video/mp4',
      byteLength,
      sampleRate: SAMPLE_RATE,
      read: (start, end) => {
        const parts: Buffer[] = [];
        let at = Math.max(0, start);
        const stop = Math.min(end, byteLength);
        if (at < headerBytes && at < stop) {
          parts.push(header.subarray(at, Math.min(stop, headerBytes)));
          at = Math.min(stop, headerBytes);
        }
        while (at < stop) {
          const number = Math.floor((at - headerBytes) / CHUNK_BYTES);
          const chunkStart = headerBytes + number * CHUNK_BYTES;
          const chunk = this.#chunk(key, seed, seconds, samples, number);
          const part = chunk.subarray(at - chunkStart, Math.min(stop - chunkStart, chunk.length));
          parts.push(part);
          at += part.length;
        }
        return Buffer.concat(parts);
      },
    };
  }

  #chunk(key: string, seed: string, seconds: number, samples: number, number: number): Buffer {
    return cached(this.#chunks, `${number} ${key}`, CACHED_CHUNKS, () => {
      const notes = cached(this.#scores, key, CACHED_SCORES, () => compose(seed, seconds));
      const first = (number * CHUNK_BYTES) / 2;
      return render(notes, samples, first, Math.min(samples, first + CHUNK_BYTES / 2));
    });
  }
}

function cached<T>(map: Map<string, T>, key: string, limit: number, make: () => T): T {
  const found = map.get(key) ?? make();
  map.delete(key);
  map.set(key, found);
  if (map.size > limit) {
    const [oldest] = map.keys();
    if (oldest !== undefined) map.delete(oldest);
  }
  return found;
}

function wavHeader(dataBytes: number): Buffer {
  const header = Buffer.alloc(WAV_HEADER_BYTES);
  header.write('RIFF', 0, 'ascii');
  header.writeUInt32LE(WAV_HEADER_BYTES - 8 + dataBytes, 4);
  header.write('WAVEfmt ', 8, 'ascii');
  header.writeUInt32LE(16, 16);
  header.writeUInt16LE(1, 20);
  header.writeUInt16LE(1, 22);
  header.writeUInt32LE(SAMPLE_RATE, 24);
  header.writeUInt32LE(SAMPLE_RATE * 2, 28);
  header.writeUInt16LE(2, 32);
  header.writeUInt16LE(16, 34);
  header.write('data', 36, 'ascii');
  header.writeUInt32LE(dataBytes, 40);
  return header;
}
