import type { Submission } from '../../../src/core/provider.ts';
import { createSoniloProvider } from '../../../src/provider/sonilo/client.ts';

// A process that submits once, for what only a process's own environment can change, and for what happens to a whole
// process. Each number on stdin, in ms, is a time for which its event loop is blocked. Says the outcome on stdout.

/** In the environment variable ONETAKE_TEST_SUBMIT, as JSON. */
export interface SubmitChildOptions {
  readonly baseUrl: string;
  readonly submission: Omit<Submission, 'maySend'>;
  /** Of its prompt, where it is too long for an environment. */
  readonly promptBytes?: number;
}

const { baseUrl, submission, promptBytes } = JSON.parse(
  process.env['ONETAKE_TEST_SUBMIT'] ?? '{}',
) as SubmitChildOptions;
process.stdin.on('data', (line) => {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, Number(line));
});
process.stdin.unref();
const prompt = promptBytes === undefined ? {} : { prompt: 'x'.repeat(promptBytes) };
const provider = createSoniloProvider({ baseUrl });
const outcome = await provider.submit({
  ...submission,
  fields: { ...submission.fields, ...prompt },
  maySend: () => true,
});
await provider.close();
// What the environment does to a request that is not ours.
await fetch('http://elsewhere.invalid/', { signal: AbortSignal.timeout(5_000) }).catch(() => undefined);
process.stdout.write(`${JSON.stringify({ outcome })}\n`);
