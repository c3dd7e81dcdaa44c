import { expect } from 'vitest';
import type { Provider, Submission, SubmissionOutcome, TaskReading } from '../../../src/core/provider.ts';
import { createSoniloProvider } from '../../../src/provider/sonilo/client.ts';
import { type RawBehaviour, type RawServer, rawServer } from './raw-server.ts';

export const API_KEY = 'sk_test_0123456789';
export const PROMPT = 'Rain & brass = 100% “slow”\r\nsecond line';

export function submission(changes: Partial<Submission> = {}): Submission {
  return {
    attemptId: '018f0000-0000-7000-8000-000000000001',
    operation: 'text-to-music',
    fields: { mode: 'async', output_format: 'm4a', prompt: PROMPT, stems: 'false', variants_num: '1' },
    apiKey: API_KEY,
    deadlines: { connectMs: 4_000, firstResponseMs: 8_000, submissionMs: 10_000 },
    resubmitOn: [],
    maySend: () => true,
    ...changes,
  };
}

/** For servers that never answer: the deadline is what is waited for. */
export const SHORT = { connectMs: 1_000, firstResponseMs: 1_200, submissionMs: 1_600 };

export async function submitTo(
  behaviour: RawBehaviour,
  changes: Partial<Submission> = {},
): Promise<{ outcome: SubmissionOutcome; server: RawServer }> {
  const server = await rawServer(behaviour);
  const origin = behaviour.tls === true ? 'https://localhost' : 'http://127.0.0.1';
  const outcome = await submitAt(`${origin}:${server.port}`, changes);
  await server.stop();
  // Of every case, whatever else it is about: one request at most, of any method, and one connection.
  expect(server.requests.length).toBeLessThanOrEqual(1);
  expect(server.connections).toBeLessThanOrEqual(1);
  return { outcome, server };
}

export async function submitAt(
  baseUrl: string,
  changes: Partial<Submission> = {},
): Promise<SubmissionOutcome> {
  const provider = createSoniloProvider({ baseUrl });
  try {
    const outcome = await provider.submit(submission(changes));
    const shown = JSON.stringify(outcome);
    for (const secret of [API_KEY, 'Rain', baseUrl]) expect(shown).not.toContain(secret);
    return outcome;
  } finally {
    await provider.close();
  }
}

export const READ = {
  taskId: 'task-1',
  operation: 'text-to-music',
  fields: {},
  apiKey: API_KEY,
  timeoutMs: 8_000,
} as const;

export async function readFrom(
  behaviour: RawBehaviour,
  read: Partial<Parameters<Provider['readTask']>[0]> = {},
): Promise<{ reading: TaskReading; server: RawServer }> {
  const server = await rawServer(behaviour);
  const provider = createSoniloProvider({ baseUrl: `http://127.0.0.1:${server.port}` });
  const reading = await provider.readTask({ ...READ, ...read });
  await provider.close();
  await server.stop();
  return { reading, server };
}

/** Outcomes as they are expected whole: an unexpected field fails the test too. */
export const UNSENT = {
  health: 'dependency_failure',
  certainty: 'unsent',
  reason: 'unsent',
  alert: false,
  retryAfterMs: null,
} as const;

export const UNSENT_OWN_DOING = {
  health: 'none',
  certainty: 'unsent',
  reason: 'unsent_own_doing',
  alert: true,
  retryAfterMs: null,
} as const;

export const TRANSPORT = {
  health: 'dependency_failure',
  certainty: 'unknown',
  reason: 'transport',
  alert: false,
  retryAfterMs: null,
} as const;

export const WITHOUT_TASK_ID = {
  health: 'unknown_failure',
  certainty: 'unknown',
  reason: 'accepted_without_task_id',
  alert: true,
  retryAfterMs: null,
} as const;

export function noStatus(phase: 'unsent' | 'sent', errorCode: unknown, headersSentProof = 'oracle') {
  return {
    phase,
    headersSent: phase === 'sent',
    headersSentProof,
    httpStatus: null,
    errorCode,
    providerTaskId: null,
    responseAgeMs: null,
    closed: true,
  };
}
