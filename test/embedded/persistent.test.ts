import { mkdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { beforeEach, describe, expect, it } from 'vitest';
import { startEmbeddedPostgres } from '../../src/embedded/start-embedded-postgres.ts';
import { processIsAlive } from '../support/children.ts';
import { waitFor } from '../support/wait-for.ts';
import { queryValue, serverOf, startNoticed, startServerInChild } from './embedded-server.ts';
import { useOwnTemporaryDirectory } from './own-temporary-directory.ts';

describe('a persistent embedded PostgreSQL', { timeout: 60_000 }, () => {
  const temporary = useOwnTemporaryDirectory();
  let directory = '';
  beforeEach(() => {
    directory = join(temporary.path, 'project', '.onetake', 'postgres');
  });
  const options = () => ({ mode: 'persistent', directory }) as const;

  it('keeps data, port and password over a restart', async () => {
    const first = await startEmbeddedPostgres(options());
    await queryValue(first.connectionString, 'create table kept as select 42 as value');
    await first.stop();
    expect(temporary.entries()).toEqual(['project']);

    await using second = await startEmbeddedPostgres(options());
    expect(second.connectionString).toBe(first.connectionString);
    expect(await queryValue(second.connectionString, 'select value from kept')).toBe(42);
    expect(await queryValue(second.connectionString, `select current_setting('fsync') as value`)).toBe('on');
  });

  it('keeps its password where no other user reads it', async () => {
    await using server = await startEmbeddedPostgres(options());
    const file = join(directory, 'server.json');
    expect(readFileSync(file, 'utf8')).toContain(new URL(server.connectionString).password);
    expect(statSync(file).mode & 0o077).toBe(0);
  });

  it('takes another port, says so and stays there when the remembered one is taken', async () => {
    const first = await startEmbeddedPostgres(options());
    await first.stop();
    const squatter = createServer();
    await new Promise<void>((resolve) => squatter.listen(first.port, '127.0.0.1', resolve));
    const second = await startNoticed(options());
    await second.server.stop();
    await new Promise((resolve) => squatter.close(resolve));

    expect(second.server.port).not.toBe(first.port);
    expect(second.notices).toEqual([`listening on port ${second.server.port}, no longer on ${first.port}`]);
    await using third = await startEmbeddedPostgres(options());
    expect(third.port).toBe(second.server.port);
  });

  it('listens on the port that it is given, or refuses by name', async () => {
    const squatter = createServer();
    await new Promise<void>((resolve) => squatter.listen(0, '127.0.0.1', resolve));
    const { port } = squatter.address() as { port: number };
    await expect(startEmbeddedPostgres({ ...options(), port })).rejects.toMatchObject({
      code: 'embedded_postgres_failed',
      message: `port ${port} is taken by another process`,
    });
    await new Promise((resolve) => squatter.close(resolve));
    await using server = await startEmbeddedPostgres({ ...options(), port });
    expect(server.port).toBe(port);
  });

  it('refuses a directory that is in use, and leaves its server running', async () => {
    await using first = await startEmbeddedPostgres(options());
    await expect(startEmbeddedPostgres(options())).rejects.toMatchObject({
      code: 'embedded_postgres_failed',
      message: expect.stringContaining(
        `in use by another embedded PostgreSQL (supervisor ${first.supervisorPid})`,
      ),
    });
    expect(await queryValue(first.connectionString, 'select 1 as value')).toBe(1);
  });

  it('starts again at once after a SIGKILL of its parent', async () => {
    await using child = startServerInChild(options());
    const first = await serverOf(child);
    await queryValue(first.connectionString, 'create table kept as select 42 as value');
    await child.kill('SIGKILL');
    await using second = await startEmbeddedPostgres(options());
    expect(second.port).toBe(first.port);
    expect(await queryValue(second.connectionString, 'select value from kept')).toBe(42);
  });

  it('stops the orphan that a killed supervisor left behind, and keeps the data', async () => {
    await using child = startServerInChild(options());
    const orphan = await serverOf(child);
    await queryValue(orphan.connectionString, 'create table kept as select 42 as value');
    process.kill(orphan.supervisorPid, 'SIGKILL');
    await child.kill('SIGKILL');
    await waitFor(() => !processIsAlive(orphan.supervisorPid), { what: 'the supervisor to be gone' });
    expect(processIsAlive(orphan.postmasterPid)).toBe(true);

    const { server, notices } = await startNoticed(options());
    await using _ = server;
    expect(processIsAlive(orphan.postmasterPid)).toBe(false);
    expect(notices).toEqual([expect.stringContaining(`stopping PostgreSQL ${orphan.postmasterPid}`)]);
    expect(server.connectionString).toBe(orphan.connectionString);
    expect(await queryValue(server.connectionString, 'select value from kept')).toBe(42);
    expect(temporary.entries().filter((name) => name.startsWith('onetake-postgres-'))).toHaveLength(1);
  });

  it('signals no process that merely has the pid of a stale postmaster.pid', async () => {
    await (await startEmbeddedPostgres(options())).stop();
    await using bystander = startServerInChild({ mode: 'ephemeral' });
    const { postmasterPid } = await serverOf(bystander);
    writeFileSync(join(directory, 'data', 'postmaster.pid'), `${postmasterPid}\n`);
    // PostgreSQL itself may refuse this lock file; what counts is that the other server lives.
    const outcome = await startEmbeddedPostgres(options()).catch((error: unknown) => error);
    if (typeof outcome === 'object' && outcome !== null && 'stop' in outcome)
      await (outcome.stop as () => Promise<void>)();
    expect(processIsAlive(postmasterPid)).toBe(true);
  });

  it('begins anew after an initialisation that was cut short', async () => {
    mkdirSync(join(directory, 'data.new'), { recursive: true });
    writeFileSync(join(directory, 'data.new', 'PG_VERSION'), '18\n');
    await using server = await startEmbeddedPostgres(options());
    expect(await queryValue(server.connectionString, 'select 1 as value')).toBe(1);
  });

  it('names the remedy when its settings are lost', async () => {
    await (await startEmbeddedPostgres(options())).stop();
    rmSync(join(directory, 'server.json'));
    await expect(startEmbeddedPostgres(options())).rejects.toMatchObject({
      message: expect.stringContaining('server.json is missing'),
      hint: expect.stringContaining(`remove ${directory}`),
    });
  });

  it('shows the last lines of the log when the server does not start', async () => {
    await (await startEmbeddedPostgres(options())).stop();
    writeFileSync(join(directory, 'data', 'postgresql.conf'), 'no_such_setting = 1\n');
    await expect(startEmbeddedPostgres(options())).rejects.toMatchObject({
      code: 'embedded_postgres_failed',
      message: expect.stringMatching(/did not start on port \d+\n.*no_such_setting/s),
    });
    expect(temporary.entries()).toEqual(['project']);
  });
});
