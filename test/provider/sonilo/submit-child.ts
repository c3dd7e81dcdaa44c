import type { Submission } from '../../../src/core/provider.ts';
import { createSoniloProvider } from '../../../src/provider/sonilo/client.ts';

// A process that submits once, for what only a process's own environment can change. Says the outcome on stdout.

/** In the environment variable ONETAKE_TEST_SUBMIT, as JSON. */
export interface SubmitChildOptions {
  readonly baseUrl: string;
  readonly submission: Omit<Submission, 'maySend'>;
}

const { baseUrl, submission } = JSON.parse(process.env['ONETAKE_TEST_SUBMIT'] ?? '{}') as SubmitChildOptions;
const provider = createSoniloProvider({ baseUrl });
const outcome = await provider.submit({ ...submission, maySend: () => true });
await provider.close();
// What the environment does to a request that is not ours.
await fetch('http://elsewhere.invalid/', { signal: AbortSignal.timeout(5_000) }).catch(() => undefined);
process.stdout.write(`${JSON.stringify({ outcome })}\n`);
