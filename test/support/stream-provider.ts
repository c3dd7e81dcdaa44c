import { createHash } from 'node:crypto';
import type { ProviderCall } from './raw-provider.ts';

// What a provider writes into an answer that is a stream.

/** Of the signature of an M4A file and bytes of its own. */
export function soundOf(seed: string, bytes = 2_000): Buffer {
  const head = Buffer.from('\0\0\0\x18ftypM4A \0\0\0\0', 'latin1');
  const block = createHash('sha512').update(seed).digest();
  const body = Buffer.concat(Array.from({ length: Math.ceil(bytes / block.length) }, () => block));
  return Buffer.concat([head, body.subarray(0, bytes)]);
}

export const sha256 = (bytes: Uint8Array): string => createHash('sha256').update(bytes).digest('hex');

export function lineOf(event: object): string {
  return `${JSON.stringify(event)}\n`;
}

export const TITLE = lineOf({ type: 'title', title: 'Ein 歌' });
export const COMPLETE = lineOf({ type: 'complete' });

/** In three pieces. */
export function audioLines(sound: Buffer, index = 0, streams = 1): string {
  const size = Math.ceil(sound.length / 3);
  return [0, 1, 2]
    .map((n) => sound.subarray(n * size, (n + 1) * size).toString('base64'))
    .map((data) => lineOf({ type: 'audio_chunk', stream_index: index, num_streams: streams, data }))
    .join('');
}

/** Begins the answer; whatever follows is the test's. */
export function begin(call: ProviderCall): void {
  call.response.writeHead(200, { 'content-type': 'application/x-ndjson' });
  call.response.flushHeaders();
}

export function stream(call: ProviderCall, ...lines: readonly string[]): void {
  begin(call);
  call.response.write(lines.join(''));
}
