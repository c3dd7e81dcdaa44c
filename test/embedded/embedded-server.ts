import pg from 'pg';
import {
  type EmbeddedPostgresOptions,
  startEmbeddedPostgres,
} from '../../src/embedded/start-embedded-postgres.ts';
import { type Child, startChild } from '../support/children.ts';

export interface ServerReport {
  readonly connectionString: string;
  readonly port: number;
  readonly postmasterPid: number;
  readonly supervisorPid: number;
  readonly notices: readonly string[];
}

/** One value from a fresh connection, closed before this returns. */
export async function queryValue(connectionString: string, text: string): Promise<unknown> {
  const client = new pg.Client({ connectionString });
  await client.connect();
  try {
    const { rows } = await client.query<{ value: unknown }>(text);
    return rows[0]?.value;
  } finally {
    await client.end();
  }
}

/** A server together with what it told its user, but for the copy of the binaries that some checkouts need. */
export async function startNoticed(options: EmbeddedPostgresOptions) {
  const notices: string[] = [];
  const onNotice = (message: string): void => {
    if (!message.startsWith('copied the PostgreSQL binaries')) notices.push(message);
  };
  const server = await startEmbeddedPostgres({ ...options, onNotice });
  return { server, notices };
}

/** A process that starts a server, reports it, and stops it when its stdin says so. */
export function startServerInChild(
  options: EmbeddedPostgresOptions,
  setting: { readonly from?: string; readonly before?: string; readonly env?: Record<string, string> } = {},
): Child {
  return startChild({
    module: `
      ${setting.before ?? ''}
      const { startEmbeddedPostgres } = await import(${JSON.stringify(
        setting.from ?? './src/embedded/start-embedded-postgres.ts',
      )});
      const notices = [];
      try {
        const server = await startEmbeddedPostgres({
          ...${JSON.stringify(options)},
          onNotice: (message) => notices.push(message),
        });
        console.log(JSON.stringify({ ...server, notices }));
        process.stdin.once('data', () => server.stop().then(() => process.stdin.destroy()));
      } catch (error) {
        console.log(JSON.stringify({ code: error.code, message: error.message, hint: error.hint }));
        process.exitCode = 1;
      }`,
    ...(setting.env === undefined ? {} : { env: setting.env }),
  });
}

export function serverOf(child: Child): Promise<ServerReport> {
  return child.message<ServerReport>((message) => message.port > 0, 'the child to report its server', 60_000);
}
