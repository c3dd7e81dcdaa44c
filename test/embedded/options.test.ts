import { describe, expect, it } from 'vitest';
import {
  type EmbeddedPostgresOptions,
  startEmbeddedPostgres,
} from '../../src/embedded/start-embedded-postgres.ts';

describe('the options of the embedded PostgreSQL', () => {
  it.each([
    [{ mode: 'forever' }, 'mode must be "ephemeral" or "persistent"'],
    [{ mode: 'ephemeral', durabel: true }, 'Did you mean "durable"?'],
    [{ mode: 'ephemeral', directory: 'x' }, 'directory is not an option in ephemeral mode'],
    [{ mode: 'ephemeral', durable: 'yes' }, 'durable must be true or false'],
    [{ mode: 'persistent' }, 'directory must be the path of a directory'],
    [{ mode: 'persistent', directory: 'x', port: 5432 }, 'not 5432'],
    [{ mode: 'persistent', directory: 'x', port: '6000' }, 'port must be a whole number'],
  ])('refuses %j', async (options, message) => {
    await expect(startEmbeddedPostgres(options as EmbeddedPostgresOptions)).rejects.toMatchObject({
      code: 'invalid_option',
      message: expect.stringContaining(message),
    });
  });
});
