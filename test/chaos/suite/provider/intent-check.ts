import pg from 'pg';

const ATTEMPTS = `select count(*)::int as committed
from onetake.submission_attempts a join onetake.generation_requests r on r.id = a.request_id
where r.request_key = $1 and a.certainty is distinct from 'unsent'`;

/**
 * Asks the database, in the moment in which a POST has arrived, whether its intent is committed: a moment later
 * it could have been made up for. `posts` counts those of the request so far. Undefined while nobody answers.
 */
export class IntentCheck {
  readonly #pool: pg.Pool;

  constructor(connectionString: string) {
    this.#pool = new pg.Pool({
      connectionString,
      max: 4,
      application_name: 'the provider of the suite',
      connectionTimeoutMillis: 2_000,
      query_timeout: 2_000,
    });
    this.#pool.on('error', () => undefined);
    this.#pool.on('connect', (client) => client.on('error', () => undefined));
  }

  async isCommitted(requestKey: string, posts: number): Promise<boolean | undefined> {
    try {
      const { rows } = await this.#pool.query<{ committed: number }>(ATTEMPTS, [requestKey]);
      return (rows[0]?.committed ?? 0) >= posts;
    } catch {
      return undefined;
    }
  }
}
