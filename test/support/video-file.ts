import { writeFileSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { onTestFinished } from 'vitest';
import { type VideoOptions, videoBytes } from './video-bytes.ts';

/** Written into a directory that ends with the test. */
export async function videoFile(options: VideoOptions = {}): Promise<{ path: string; content: Buffer }> {
  const path = join(await temporaryDirectory(), 'their holiday.mp4');
  const content = videoBytes(options);
  writeFileSync(path, content);
  return { path, content };
}

export async function temporaryDirectory(): Promise<string> {
  const directory = await mkdtemp(join(tmpdir(), 'onetake-video-'));
  onTestFinished(() => rm(directory, { recursive: true, force: true }));
  return directory;
}
