import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { startChild } from './children.ts';

export interface S3Server extends AsyncDisposable {
  readonly endpoint: string;
  readonly bucket: string;
  /** Method and query of every request so far, in order. */
  readonly requests: () => readonly string[];
}

/** What the SDK's own chain finds, of a server that knows one key. */
export const S3_ENVIRONMENT = {
  AWS_ACCESS_KEY_ID: 'S3RVER',
  AWS_SECRET_ACCESS_KEY: 'S3RVER',
  AWS_REGION: 'eu-central-1',
} as const;

/** A server that speaks S3, in an operating-system process of its own, with one empty bucket. */
export async function startS3Server(): Promise<S3Server> {
  const directory = await mkdtemp(join(tmpdir(), 'onetake-s3-'));
  const child = startChild({
    module: `import { createServer } from 'node:http';
import S3rver from 's3rver';
const s3 = new S3rver({ silent: true, directory: process.env.TEST_DIRECTORY, configureBuckets: [{ name: 'songs' }] });
await s3.configureBuckets();
const answer = s3.callback();
const server = createServer((request, response) => {
  console.log(JSON.stringify({ request: request.method + ' ' + request.url }));
  answer(request, response);
});
server.listen(0, '127.0.0.1', () => console.log(JSON.stringify({ port: server.address().port })));`,
    env: { TEST_DIRECTORY: directory },
  });
  const { port } = await child.message<{ port: number }>(
    (said) => said.port !== undefined,
    'the S3 server listens',
    60_000,
  );
  return {
    endpoint: `http://127.0.0.1:${port}`,
    bucket: 'songs',
    requests: () =>
      (child.messages as { request?: string }[]).flatMap(({ request }) =>
        request === undefined ? [] : [request],
      ),
    async [Symbol.asyncDispose]() {
      await child[Symbol.asyncDispose]();
      await rm(directory, { recursive: true, force: true, maxRetries: 5 });
    },
  };
}
