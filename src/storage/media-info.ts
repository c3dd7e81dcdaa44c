import type { FileHandle } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { OnetakeError } from '../core/errors.ts';
import type { MediaFacts } from '../core/media.ts';

/** For what has to be read twice over, and for the jumps of a container whose parts lie apart. */
const SPARE_READS = 1_000;
/** As MediaInfo asks for them. */
const READ_BYTES = 256 * 1024;

/**
 * What MediaInfo makes of a file that is open; it reads the parts that it needs, never the whole. Throws for one
 * that sends it to and fro without an end.
 */
export async function readMediaInfo(
  handle: FileHandle,
  bytes: number,
  mostReads = SPARE_READS + 2 * Math.ceil(bytes / READ_BYTES),
): Promise<MediaFacts> {
  const mediaInfo = await load();
  let reads = 0;
  try {
    const read = async (size: number, offset: number) => {
      if (++reads > mostReads) throw new Error('the file has no end');
      const chunk = new Uint8Array(size);
      const { bytesRead } = await handle.read(chunk, 0, size, offset);
      return chunk.subarray(0, bytesRead);
    };
    const tracks = (await mediaInfo.analyzeData(bytes, read)).media?.track ?? [];
    const general = tracks.find((track) => track['@type'] === 'General');
    const video = tracks.find((track) => track['@type'] === 'Video');
    const seconds = Number(general?.Duration ?? video?.Duration ?? Number.NaN);
    return {
      bytes,
      container: containerOf(general?.Format, general?.CodecID),
      codec: video?.Format?.toLowerCase() ?? null,
      seconds: Number.isFinite(seconds) ? seconds : null,
    };
  } finally {
    mediaInfo.close();
  }
}

/** Only now: an app that sends no file loads no WebAssembly. From the package's own folder, never by a fetch. */
async function load() {
  try {
    const { default: mediaInfoFactory } = await import('mediainfo.js');
    const module = createRequire(import.meta.url).resolve('mediainfo.js/MediaInfoModule.wasm');
    return await mediaInfoFactory({ format: 'object', locateFile: () => module });
  } catch {
    throw new OnetakeError(
      'mediainfo_missing',
      'mediainfo.js, which looks into local files, could not be loaded.',
      {
        hint: 'A bundler has to leave it out: declare mediainfo.js as an external package, and install it.',
      },
    );
  }
}

/** Of those that are known by another name. */
const SOUND_CONTAINERS: Readonly<Record<string, string>> = {
  wave: 'wav',
  'mpeg audio': 'mp3',
  adts: 'aac',
};

/** By what the file says, not by its name. */
function containerOf(format: string | undefined, brand: string | undefined): string | null {
  if (format !== 'MPEG-4') {
    const name = format?.toLowerCase() ?? null;
    return name === null ? null : (SOUND_CONTAINERS[name] ?? name);
  }
  if (brand?.startsWith('qt') === true) return 'mov';
  if (brand?.startsWith('M4A') === true) return 'm4a';
  return brand?.startsWith('M4V') === true ? 'm4v' : 'mp4';
}
