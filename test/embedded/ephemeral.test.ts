import { readFileSync } from 'node:fs';
import { connect } from 'node:net';
import { networkInterfaces } from 'node:os';
import { describe, expect, it } from 'vitest';
import { startEmbeddedPostgres } from '../../src/embedded/start-embedded-postgres.ts';
import { processIsAlive } from '../support/children.ts';
import { waitFor } from '../support/wait-for.ts';
import { queryValue, serverOf, startNoticed, startServerInChild } from './embedded-server.ts';
import { useOwnTemporaryDirectory } from './own-temporary-directory.ts';

describe('an ephemeral embedded PostgreSQL', { timeout: 60_000 }, () => {
  const temporary = useOwnTemporaryDirectory();

  it('answers on a free loopback port, in UTF-8 and locale C, without fsync', async () => {
    await using server = await startEmbeddedPostgres({ mode: 'ephemeral' });
    const ask = (text: string) => queryValue(server.connectionString, text);

    expect(await ask('select version() as value')).toMatch(/^PostgreSQL 18\./);
    expect(server.port).not.toBe(5432);
    expect(await ask(`select current_setting('listen_addresses') as value`)).toBe('127.0.0.1');
    expect(await ask(`select current_setting('max_connections')::int as value`)).toBeGreaterThanOrEqual(200);
    expect(await ask(`select current_setting('server_encoding') as value`)).toBe('UTF8');
    expect(
      await ask(`select datcollate || ' ' || datctype as value from pg_database where datname = 'template0'`),
    ).toBe('C C');
    expect(await ask(`select current_setting('fsync') as value`)).toBe('off');
  });

  it('listens on no other address of the machine', async () => {
    await using server = await startEmbeddedPostgres({ mode: 'ephemeral' });
    const others = Object.values(networkInterfaces())
      .flatMap((addresses) => addresses ?? [])
      .filter((address) => !address.internal && !address.address.startsWith('fe80'));
    for (const { address } of others) {
      const refused = await new Promise((resolve) => {
        const socket = connect({ host: address, port: server.port });
        socket.once('connect', () => resolve(socket.destroy() && false));
        socket.once('error', () => resolve(true));
      });
      expect(refused).toBe(true);
    }
  });

  it('asks for the random password that its connection string carries', async () => {
    await using server = await startEmbeddedPostgres({ mode: 'ephemeral' });
    await using other = await startEmbeddedPostgres({ mode: 'ephemeral' });
    const wrong = new URL(server.connectionString);
    wrong.password = new URL(other.connectionString).password;
    expect(wrong.password).not.toBe(new URL(server.connectionString).password);
    await expect(queryValue(wrong.href, 'select 1 as value')).rejects.toMatchObject({ code: '28P01' });
  });

  it('keeps fsync on when it is asked to be durable', async () => {
    await using server = await startEmbeddedPostgres({ mode: 'ephemeral', durable: true });
    expect(await queryValue(server.connectionString, `select current_setting('fsync') as value`)).toBe('on');
  });

  it('is gone, and its directory with it, when stop resolves, however often it is called', async () => {
    const server = await startEmbeddedPostgres({ mode: 'ephemeral' });
    expect(temporary.entries()).toHaveLength(1);
    await Promise.all([server.stop(), server.stop()]);
    await server.stop();
    expect(processIsAlive(server.postmasterPid)).toBe(false);
    expect(processIsAlive(server.supervisorPid)).toBe(false);
    expect(temporary.entries()).toEqual([]);
  });

  it('lets the process that stopped it end by itself', async () => {
    await using child = startServerInChild({ mode: 'ephemeral' });
    await serverOf(child);
    child.send('stop');
    expect(await child.exited).toEqual({ code: 0, signal: null });
    expect(temporary.entries()).toEqual([]);
  });

  it('is gone within a second of a SIGKILL of its parent, and its directory with it', async () => {
    await using child = startServerInChild({ mode: 'ephemeral' });
    const server = await serverOf(child);
    expect(processIsAlive(server.postmasterPid)).toBe(true);
    await child.kill('SIGKILL');
    await waitFor(() => !processIsAlive(server.postmasterPid) && !processIsAlive(server.supervisorPid), {
      what: 'the server to follow its parent',
      timeoutMs: 1_000,
    });
    expect(temporary.entries()).toEqual([]);
  });

  it.runIf(process.platform === 'linux')(
    'is out of reach of a Ctrl-C in the terminal of its parent',
    async () => {
      await using server = await startEmbeddedPostgres({ mode: 'ephemeral' });
      const [, , group, session] = fieldsOf(server.supervisorPid);
      expect([group, session]).toEqual([String(server.supervisorPid), String(server.supervisorPid)]);
    },
  );

  it.runIf(process.platform === 'linux')(
    'hands no variable of its parent to the server beyond the harmless',
    async () => {
      await using child = startServerInChild(
        { mode: 'ephemeral' },
        { env: { SOME_API_KEY: 'secret', PGPORT: '1' } },
      );
      const server = await serverOf(child);
      for (const pid of [server.supervisorPid, server.postmasterPid]) {
        expect(readFileSync(`/proc/${pid}/environ`, 'utf8')).not.toMatch(/SOME_API_KEY|PGPORT/);
      }
    },
  );

  it('stops the server even when its supervisor was killed', async () => {
    const server = await startEmbeddedPostgres({ mode: 'ephemeral' });
    process.kill(server.supervisorPid, 'SIGKILL');
    await waitFor(() => !processIsAlive(server.supervisorPid), { what: 'the supervisor to be gone' });
    expect(processIsAlive(server.postmasterPid)).toBe(true);
    await server.stop();
    expect(processIsAlive(server.postmasterPid)).toBe(false);
    expect(temporary.entries()).toEqual([]);
  });

  it('sweeps what a killed supervisor left behind at the next start, and nothing else', async () => {
    await using alive = await startEmbeddedPostgres({ mode: 'ephemeral' });
    await using child = startServerInChild({ mode: 'ephemeral' });
    const orphan = await serverOf(child);
    process.kill(orphan.supervisorPid, 'SIGKILL');
    await child.kill();
    expect(processIsAlive(orphan.postmasterPid)).toBe(true);
    expect(temporary.entries()).toHaveLength(2);

    const { server: next, notices } = await startNoticed({ mode: 'ephemeral' });
    await using _ = next;
    expect(processIsAlive(orphan.postmasterPid)).toBe(false);
    expect(temporary.entries()).toHaveLength(2);
    expect(await queryValue(alive.connectionString, 'select 1 as value')).toBe(1);
    expect(notices).toEqual([]);
  });

  it('says so when the server ends by itself', async () => {
    const { server, notices } = await startNoticed({ mode: 'ephemeral' });
    process.kill(server.postmasterPid, 'SIGKILL');
    await waitFor(() => notices.length > 0, { what: 'a notice' });
    expect(notices).toEqual(['the embedded PostgreSQL ended by itself']);
    await server.stop();
    expect(temporary.entries()).toEqual([]);
  });
});

/** State, parent, process group, session … as the kernel tells them. */
function fieldsOf(pid: number): string[] {
  return readFileSync(`/proc/${pid}/stat`, 'utf8')
    .replace(/^.*\) /s, '')
    .split(' ');
}
