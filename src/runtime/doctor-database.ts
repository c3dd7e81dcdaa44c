import pg from 'pg';
import { OnetakeError } from '../core/errors.ts';
import { INSTALLATION_TROUBLE_MEANS } from '../core/installation.ts';
import type { Sql } from '../postgres/database.ts';
import { readInstallation } from '../postgres/installation.ts';
import { readSchemaStatus, type SchemaStatus } from '../postgres/schema-version.ts';
import { readServerFacts, type ServerFacts } from '../postgres/server-facts.ts';
import { timed } from '../postgres/session.ts';
import { QUEUE_SCHEMA_VERSION } from '../queue/boss.ts';
import { listDifferences } from './configuration-rows.ts';
import { explainDatabaseError } from './database-errors.ts';
import { type Check, fail, ok, warn } from './doctor-check.ts';
import type { ResolvedConfig } from './options.ts';

const CONNECT_TIMEOUT_MS = 5_000;
/** Only instants that people read would be off: the database's clock decides everything. */
const CLOCK_LIMIT_MS = 2_000;

/** Everything that the database tells; when it is away, that, and nothing else. */
export async function examineDatabase(connectionString: string, config: ResolvedConfig): Promise<Check[]> {
  const client = new pg.Client({
    connectionString,
    application_name: 'onetake doctor',
    connectionTimeoutMillis: CONNECT_TIMEOUT_MS,
  });
  client.on('error', () => {});
  try {
    await client.connect();
    const facts = await readServerFacts(client);
    const sql: Sql = { executeSql: (text, values) => client.query(timed(text, values)) };
    return [...ofServer(facts), ...(await ofSchema(sql, facts, config))];
  } catch (error) {
    return [away(error)];
  } finally {
    await client.end().catch(() => {});
  }
}

function away(error: unknown): Check {
  const told = explainDatabaseError(error);
  const known = told instanceof OnetakeError ? told : undefined;
  const { message = "The database can't be asked.", hint = 'Check that it runs.' } = known ?? {};
  return fail('database', message.replace(/\.$/, ''), hint);
}

function ofServer(facts: ServerFacts): Check[] {
  const major = Math.trunc(facts.version / 10_000);
  const way = facts.isDirect ? 'directly' : 'through a pooler';
  return [
    facts.inRecovery || facts.readOnly
      ? fail(
          'database',
          `reached ${way}, but it takes no writes: ${facts.inRecovery ? 'a standby' : 'read-only by default'}`,
          'Connect to the primary; default_transaction_read_only is respected.',
        )
      : ok(
          'database',
          facts.isDirect ? 'reached directly' : `reached ${way}; migrate needs a direct connection`,
        ),
    major < 15
      ? fail('version', `PostgreSQL ${major}`, 'Use 15 to 18.')
      : major > 18
        ? warn('version', `PostgreSQL ${major}, which nobody has tested`, 'Use 15 to 18.')
        : ok('version', `PostgreSQL ${major}`),
    ...ofDurability(facts),
    ofClock(facts),
    ok('session', `time zone ${facts.timeZone}, dates ${facts.dateStyle}; onetake sets its own`),
  ];
}

function ofDurability(facts: ServerFacts): Check[] {
  const { fsync, fullPageWrites, synchronousCommit } = facts;
  const off = [fsync ? '' : 'fsync', fullPageWrites ? '' : 'full_page_writes'].filter((name) => name !== '');
  const raised = ['off', 'local', 'remote_write'].includes(synchronousCommit);
  const lossy = 'a failover may lose submissions that were confirmed';
  return [
    off.length > 0
      ? fail(
          'durability',
          `${off.join(' and ')} off: a crash of its machine may lose submissions that were confirmed`,
          `Set ${off.map((name) => `${name} = on`).join(', ')}, unless this is a test.`,
        )
      : ok('durability', 'fsync and full_page_writes are on'),
    ok(
      'commit',
      `synchronous_commit = ${synchronousCommit} for this role${raised ? '; intent and outcome use on' : ''}`,
    ),
    facts.hasSynchronousStandby
      ? ok('standby', 'one is synchronous')
      : facts.standbys > 0
        ? warn(
            'standby',
            `${facts.standbys}, and none is synchronous: ${lossy}`,
            'Set synchronous_standby_names, or know `onetake recover --freeze`.',
          )
        : ok('standby', `none is synchronous: ${lossy}`),
  ];
}

function ofClock({ clockAheadMs, clockErrorMs }: ServerFacts): Check {
  const ms = Math.round(clockAheadMs);
  const detail = `the database is ${Math.abs(ms)} ms ${ms < 0 ? 'behind' : 'ahead of'} this machine`;
  if (Math.abs(clockAheadMs) - clockErrorMs <= CLOCK_LIMIT_MS) return ok('clock', detail);
  return warn('clock', detail, 'Set both by NTP. The database decides; only logs and reports are off.');
}

const SCHEMA: Readonly<Record<SchemaStatus, Check>> = {
  current: ok('schema', 'that of this release'),
  newer: ok('schema', 'newer than this release, which works with it'),
  older: fail('schema', 'older than this release', 'Run `onetake migrate`.'),
  missing: fail('schema', 'there is none', 'Run `onetake migrate`.'),
  unreadable: fail('schema', "this role can't read it", 'Grant it the rights of docs/operations.md.'),
};

async function ofSchema(sql: Sql, facts: ServerFacts, config: ResolvedConfig): Promise<Check[]> {
  const status = await readSchemaStatus(sql);
  if (status !== 'current' && status !== 'newer') return [SCHEMA[status]];
  return [
    SCHEMA[status],
    ofQueue(facts),
    ofRights(facts),
    await tried('settings', () => ofSettings(sql, config)),
    await tried('installation', () => ofInstallation(sql)),
  ];
}

function ofQueue({ queueVersion }: ServerFacts): Check {
  if (queueVersion === null) {
    return fail(
      'queue',
      "pg-boss's schema onetake_queue is missing, or not readable",
      'Run `onetake migrate`.',
    );
  }
  const detail = `pg-boss's schema, version ${queueVersion}`;
  if (queueVersion >= QUEUE_SCHEMA_VERSION) return ok('queue', detail);
  return fail('queue', `${detail}, and this release needs ${QUEUE_SCHEMA_VERSION}`, 'Run `onetake migrate`.');
}

function ofRights({ lackingRights }: ServerFacts): Check {
  if (lackingRights.length === 0) return ok('rights', 'this role may do what workers and pollers do');
  const [first, ...others] = lackingRights;
  return warn(
    'rights',
    `not enough for a worker: no ${first}${others.length === 0 ? '' : ` and ${others.length} more`}`,
    'An app needs less. For workers and pollers see Roles in docs/operations.md.',
  );
}

async function ofSettings(sql: Sql, config: ResolvedConfig): Promise<Check> {
  const differing = await listDifferences(sql, config);
  if (differing.length === 0) return ok('settings', 'the rows are those of the configuration');
  return warn(
    'settings',
    `the rows differ from the configuration, and rule: ${differing.join(', ')}`,
    'Run `onetake migrate` with the configuration that is right.',
  );
}

async function ofInstallation(sql: Sql): Promise<Check> {
  const { trouble, present } = await readInstallation(sql);
  if (trouble !== null) {
    return fail(
      'installation',
      `not recognised (${trouble}): ${INSTALLATION_TROUBLE_MEANS[trouble]}; nothing is submitted`,
      'See `onetake recover`.',
    );
  }
  const silent = present.systemIdentifier === null || present.timeline === null;
  return ok(
    'installation',
    silent ? 'recognised, by less than usual: the server hides its identity' : 'recognised',
  );
}

/** A right that one check lacks is no reason to give up the others. */
async function tried(name: string, check: () => Promise<Check>): Promise<Check> {
  try {
    return await check();
  } catch (error) {
    return { ...away(error), name };
  }
}
