import { createHash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { FileCheck, FileFacts, RequestFacts } from './facts.ts';

/** Reads every stored file back from the disk and holds it to what the database says of it. */
export async function checkFiles(
  directory: string,
  requests: readonly Pick<RequestFacts, 'id' | 'files'>[],
): Promise<FileCheck[]> {
  const checks: FileCheck[] = [];
  for (const { id, files } of requests) {
    for (const file of files) {
      const problem = await problemOf(directory, file);
      checks.push({
        requestId: id,
        location: file.location,
        ...(problem === undefined ? {} : { problem }),
      });
    }
  }
  return checks;
}

async function problemOf(directory: string, file: FileFacts): Promise<string | undefined> {
  let content: Buffer;
  try {
    content = await readFile(join(directory, file.location));
  } catch {
    return 'the file cannot be read';
  }
  if (content.length !== file.bytes) {
    return `${content.length} bytes on the disk, ${file.bytes} in the database`;
  }
  const isWav =
    content.length > 44 &&
    content.toString('latin1', 0, 4) === 'RIFF' &&
    content.toString('latin1', 8, 12) === 'WAVE' &&
    content.readUInt32LE(4) === content.length - 8;
  if (!isWav) return 'not a whole WAV file';
  if (createHash('sha256').update(content).digest('hex') !== file.sha256) {
    return 'its SHA-256 is not the one in the database';
  }
  return undefined;
}
