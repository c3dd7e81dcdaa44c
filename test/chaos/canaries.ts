import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { inspect } from 'node:util';
import { expect } from 'vitest';
import type { EnqueueInput } from '../../src/index.ts';
import type { TestDatabase } from '../support/test-database.ts';
import { videoBytes } from '../support/video-bytes.ts';
import { temporaryDirectory } from '../support/video-file.ts';
import { openWorld } from '../support/world.ts';

/** Every mark of customer data in these tests holds this word, so whatever holds it has leaked. */
const MARK = 'canary';
/** base64 and hex of it, in each of their places. */
const MARKS = [
  MARK,
  ...[0, 1, 2].map((at) =>
    Buffer.from(`${'.'.repeat(at)}${MARK}..`)
      .toString('base64')
      .slice(at === 0 ? 0 : 4, -4),
  ),
  Buffer.from(MARK).toString('hex'),
];

/** What was printed, thrown, logged or answered, by where it was found. */
export function expectNoCanary(told: Readonly<Record<string, unknown>>): void {
  for (const [where, said] of Object.entries(told)) {
    const text = typeof said === 'string' ? said : everythingOf(said);
    for (const mark of MARKS)
      expect(text.includes(mark), `${where} tells ${mark}:\n${around(text, mark)}`).toBe(false);
  }
}

/** As a log, a debugger or a crash would print it, causes and hidden properties included. */
function everythingOf(value: unknown): string {
  const inspected = inspect(value, {
    depth: 20,
    showHidden: true,
    maxStringLength: null,
    maxArrayLength: null,
  });
  return [inspected, JSON.stringify(value), ...causesOf(value)].join('\n');
}

function causesOf(value: unknown): string[] {
  const texts: string[] = [];
  for (let at = value; at instanceof Error; at = at.cause) texts.push(String(at), at.message, at.stack ?? '');
  return texts;
}

function around(text: string, mark: string): string {
  const at = text.indexOf(mark);
  return text.slice(Math.max(0, at - 200), at + 200);
}

/** Columns that are the customer's own: what was ordered, and where the files lie. */
const OWN: Readonly<Record<string, string>> = { generation_requests: 'fields', assets: 'location' };

/** Every row of every table, without those columns; says how many there are. */
export async function expectCleanTables(database: TestDatabase): Promise<number> {
  const tables = await database.query<{ name: string; table: string }>(
    `select format('%I.%I', schemaname, tablename) as name, tablename as table from pg_tables
where schemaname in ('onetake', 'onetake_queue')`,
  );
  expect(tables.length).toBeGreaterThan(8);
  let rows = 0;
  for (const { name, table } of tables) {
    const found = await database.query<{ row: string }>(
      `select (to_jsonb(t) - $1::text)::text as row from only ${name} t`,
      [OWN[table] ?? ''],
    );
    rows += found.length;
    expectNoCanary({ [name]: found.map(({ row }) => row).join('\n') });
  }
  return rows;
}

/** What others see of the sessions: the text of each one's last statement, and its name. */
export async function expectCleanSessions(database: TestDatabase): Promise<number> {
  const sessions = await database.query(
    `select application_name, query from pg_stat_activity where application_name like 'onetake %'`,
  );
  expectNoCanary({ pg_stat_activity: JSON.stringify(sessions) });
  return sessions.length;
}

export const KEY = 'sk_canary_key_91bd';
export const PROMPT = 'canary prompt 7f3a';
export const SOURCE = 'https://example.com/canary-source.mp4?token=canary-token';

/** Files of their own, marked in folder, name and content. */
export async function uploads() {
  const folder = join(await temporaryDirectory(), 'canary-folder');
  mkdirSync(folder);
  let count = 0;
  return (bytes = 4_096) => {
    count++;
    const path = join(folder, `canary-film-${count}.mp4`);
    writeFileSync(path, Buffer.concat([videoBytes({ bytes }), Buffer.from('canary-content')]));
    return path;
  };
}

export const film = (file: unknown, requestKey: string, fields: object = {}): EnqueueInput => ({
  operation: 'video-to-music',
  fields: { video: { file: file as string }, prompt: PROMPT, ...fields },
  requestKey,
});
export const fetched = (video_url: string, requestKey: string): EnqueueInput => ({
  operation: 'video-to-music',
  fields: { video_url, prompt: PROMPT },
  requestKey,
});

export const openRawWorld = () =>
  openWorld({ provider: 'raw', config: { poller: { intervalMs: 50, maxIntervalMs: 50 } } });
