import { describe, expect, test } from 'vitest';
import type { Child } from '../support/children.ts';
import { databaseProxy } from '../support/database-proxy.ts';
import { waitFor } from '../support/wait-for.ts';
import { KEY, setStage } from './stage.ts';

interface Line {
  readonly event: string;
  readonly role?: string;
  readonly host?: string;
  readonly port?: number;
}

async function observedAt(child: Child): Promise<string> {
  const line = await child.message<Line>(({ event }) => event === 'process:observed', 'it is observed');
  return `http://${line.host}:${line.port}`;
}

async function ask(url: string): Promise<{ status: number; text: string }> {
  const response = await fetch(url);
  return { status: response.status, text: await response.text() };
}

describe('--http-port', () => {
  test('serves the fleet and this process, without a word of a customer', async () => {
    const { cli } = await setStage();
    const child = cli.start(['start', '--http-port', '0']);
    const url = await observedAt(child);
    const prompt = 'hunter2canary waltz';
    await cli.json(['enqueue', 'text-to-music', '--field', `prompt=${prompt}`]);
    await waitFor(
      async () =>
        (await ask(`${url}/metrics`)).text.includes('onetake_tasks_finished_total{to="succeeded"} 1'),
      { what: 'the request to be told as finished' },
    );
    const { status, text } = await ask(`${url}/metrics`);
    expect(status).toBe(200);
    expect(text).toContain(
      'onetake_submissions_settled_total{reason="task_accepted",certainty="accepted",health="success"} 1',
    );
    expect(text).toContain('onetake_breaker_state{breaker="sonilo/text-to-music",state="closed"} 1');
    expect(text).toContain('onetake_account_requests_per_minute{account="default"} 60');
    expect(text).not.toMatch(/canary|hunter2/);
    expect(text).not.toContain(KEY);
    expect(await ask(`${url}/healthz`)).toEqual({ status: 200, text: '{"status":"ok"}\n' });
    await waitFor(async () => (await ask(`${url}/readyz`)).status === 200, { what: 'both to be ready' });
    expect(await child.kill('SIGTERM')).toEqual({ code: 0, signal: null });
    await expect(fetch(`${url}/healthz`)).rejects.toThrow('fetch failed');
  });

  test('without a database it lives and is not ready, its own counters go on, and it comes back', async () => {
    const { cli, database } = await setStage();
    const proxy = await databaseProxy(database.connectionString);
    try {
      const child = cli.start(['worker', '--http-port', '0'], { DATABASE_URL: proxy.connectionString });
      const url = await observedAt(child);
      await waitFor(async () => (await ask(`${url}/readyz`)).status === 200, { what: 'it to be ready' });
      await proxy.down();
      await waitFor(async () => (await ask(`${url}/readyz`)).text === '{"status":"database_unavailable"}\n', {
        what: 'it to miss its database',
      });
      expect((await ask(`${url}/healthz`)).status).toBe(200);
      await waitFor(async () => (await ask(`${url}/metrics`)).text.includes('onetake_database_up 0'), {
        what: 'a scrape that says so',
      });
      await proxy.up();
      await waitFor(async () => (await ask(`${url}/readyz`)).status === 200, {
        what: 'it to be ready again',
      });
      await waitFor(async () => (await ask(`${url}/metrics`)).text.includes('onetake_database_up 1'), {
        what: 'a scrape with the fleet',
      });
      expect(await child.kill('SIGTERM')).toEqual({ code: 0, signal: null });
    } finally {
      await proxy.stop();
    }
  });

  test('a port that is taken, or none at all, is refused by name before anything runs', async () => {
    const { cli } = await setStage();
    const child = cli.start(['poller', '--http-port', '0']);
    const { port } = new URL(await observedAt(child));
    expect(await cli.error(['worker', '--http-port', port])).toMatchObject({
      code: 'invalid_option',
      message: "--http-port: can't listen on it (EADDRINUSE).",
    });
    expect((await cli.error(['worker', '--http-port', '70000'])).message).toContain('--http-port');
    await child.kill('SIGTERM');
  });
});
