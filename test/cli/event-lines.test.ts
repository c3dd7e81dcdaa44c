import { PassThrough } from 'node:stream';
import { describe, expect, test } from 'vitest';
import { eventPrinter, lineOf } from '../../src/cli/event-lines.ts';
import { createTerminal } from '../../src/cli/output.ts';
import type { OnetakeEvents } from '../../src/core/events.ts';
import { readEnvironment } from '../../src/runtime/environment.ts';

const ID = '0f3c1a2b-0000-4000-8000-000000000000';
const SETTLED: OnetakeEvents['submission:settled'] = {
  requestId: ID,
  attemptId: ID,
  from: 'submitting',
  to: 'ambiguous',
  reason: 'server_error',
  health: 'dependency_failure',
  certainty: 'unknown',
  phase: 'answered',
  httpStatus: 502,
  errorCode: null,
  providerTaskId: null,
  attention: null,
};

function printed(isTTY: boolean, json = false): string {
  const stream = () => Object.assign(new PassThrough(), { isTTY });
  const stdout = stream();
  const terminal = createTerminal(
    { stdin: stream(), stdout, stderr: stream() },
    { json, environment: readEnvironment({ NO_COLOR: '1' }) },
  );
  eventPrinter(terminal)('submission:settled', SETTLED);
  return String(stdout.read() ?? '');
}

describe('events of a process', () => {
  test('are one JSON value per line in a pipe, and with --json', () => {
    for (const text of [printed(false), printed(true, true)]) {
      expect(text.endsWith('\n')).toBe(true);
      expect(JSON.parse(text)).toMatchObject({ event: 'submission:settled', requestId: ID, httpStatus: 502 });
    }
  });

  test('are short lines for a person', () => {
    expect(printed(true)).toMatch(/^\d\d:\d\d:\d\dZ {2}0f3c1a2b {2}ambiguous \(502\): /);
  });

  test('say of an ambiguous submission: outcome unknown, possibly charged, do not resubmit', () => {
    expect(lineOf('submission:settled', SETTLED)?.text).toBe(
      '0f3c1a2b  ambiguous (502): outcome unknown, possibly charged, do not resubmit',
    );
  });

  test('say of a request that came back that nothing was bought', () => {
    const event = { ...SETTLED, to: 'queued', httpStatus: 429 } as const;
    expect(lineOf('submission:settled', event)?.text).toBe(
      '0f3c1a2b  back in the queue (429): nothing was bought',
    );
  });
});
