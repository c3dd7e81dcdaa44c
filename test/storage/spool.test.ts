import { execFileSync, spawnSync } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { mkdir, mkdtemp, readdir, readFile, rm, stat, symlink, utimes, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeEach, describe, expect, it, onTestFinished } from 'vitest';
import { createSpool, type Spool, type SpoolTrouble } from '../../src/storage/spool.ts';
import { encodeSpooled } from '../../src/storage/spool-file.ts';
import { spooledOutcome } from '../support/spooled.ts';

let root: string;
let directory: string;
let troubles: SpoolTrouble[];
let spool: Spool;

const spoolIn = (place: string) =>
  createSpool({ directory: place, onTrouble: (trouble) => troubles.push(trouble) });

beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), 'onetake-spool-'));
  onTestFinished(() => rm(root, { recursive: true, force: true }));
  directory = join(root, 'a', 'spool');
  troubles = [];
  spool = spoolIn(directory);
});

/** Another process that looks at the same directory. */
const another = () => spoolIn(directory);

async function keptFile(): Promise<string> {
  const [name] = await readdir(directory);
  return join(directory, name as string);
}

describe('an outcome that is kept', () => {
  it('is read back whole by another process', async () => {
    const spooled = spooledOutcome();
    expect(await spool.keep(spooled)).toBe(true);
    const [file] = await another().list();
    expect(file).toEqual({
      name: `${spooled.intent.attemptId}.json`,
      attemptId: spooled.intent.attemptId,
    });
    expect(await another().read(file as never)).toEqual({ kind: 'outcome', spooled });
    expect(await readFile(await keptFile(), 'utf8')).toBe(encodeSpooled(spooled));
    expect(troubles).toEqual([]);
  });

  it('is for this user alone, and so is its directory, but not what is above it', async () => {
    await spool.keep(spooledOutcome());
    const modes = async (path: string) => (await stat(path)).mode & 0o777;
    expect(await modes(await keptFile())).toBe(0o600);
    expect(await modes(directory)).toBe(0o700);
    expect(await modes(join(root, 'a'))).toBe(0o777 & ~process.umask());
  });

  it('is this process’s own until it lets go, and everybody else’s from the start', async () => {
    const { intent, outcome } = spooledOutcome();
    await spool.keep({ intent, outcome });
    expect(await spool.list()).toEqual([]);
    expect(await another().list()).toHaveLength(1);
    spool.letGo(intent.attemptId);
    expect(await spool.list()).toHaveLength(1);
  });

  it('is gone when it is committed, and once more changes nothing', async () => {
    const spooled = spooledOutcome();
    await spool.keep(spooled);
    const [file] = await another().list();
    await spool.discard(spooled.intent.attemptId);
    await spool.discard(spooled.intent.attemptId);
    expect(await readdir(directory)).toEqual([]);
    // Two replays at once: the second finds nothing.
    expect(await another().read(file as never)).toBeUndefined();
    await another().remove(file as never);
    expect(await another().setAside(file as never)).toBe(false);
    expect(troubles).toEqual([]);
  });

  it('finds its directory again when somebody has removed it', async () => {
    await spool.keep(spooledOutcome());
    await rm(directory, { recursive: true });
    expect(await spool.keep(spooledOutcome())).toBe(true);
  });
});

describe('what lies in the directory besides', () => {
  beforeEach(() => spool.check());

  const listed = async () => (await spool.list()).map(({ name }) => name);

  it('is nobody’s business when its name is not ours', async () => {
    for (const name of [
      'notes.txt',
      'x.json',
      `${randomUUID()}.json.bad`,
      `${randomUUID()}.bak`,
      '.nfs0001',
    ]) {
      await writeFile(join(directory, name), 'x');
    }
    await mkdir(join(directory, 'folder'));
    expect(await listed()).toEqual([]);
  });

  it('is damaged when it is no file, and is never opened', async () => {
    const [pipe, folder, link] = [randomUUID(), randomUUID(), randomUUID()] as const;
    execFileSync('mkfifo', [join(directory, `${pipe}.json`)]);
    await mkdir(join(directory, `${folder}.json`));
    await symlink('/dev/zero', join(directory, `${link}.json`));
    const files = await spool.list();
    expect(files).toHaveLength(3);
    for (const file of files) {
      expect(await spool.read(file)).toEqual({ kind: 'damaged' });
      expect(await spool.setAside(file)).toBe(true);
    }
    expect(await listed()).toEqual([]);
  });

  it('is damaged when it is larger than any outcome can be', async () => {
    const text = encodeSpooled(spooledOutcome());
    await writeFile(join(directory, `${randomUUID()}.json`), text + ' '.repeat(20_000));
    const [file] = await spool.list();
    expect(await spool.read(file as never)).toEqual({ kind: 'damaged' });
  });

  it('is kept when it is set aside, beside what lies there already', async () => {
    const attemptId = randomUUID();
    for (const content of ['first', 'second']) {
      await writeFile(join(directory, `${attemptId}.json`), content);
      const [file] = await spool.list();
      expect(await spool.setAside(file as never)).toBe(true);
    }
    const aside = await readdir(directory);
    expect(aside).toHaveLength(2);
    for (const name of aside) expect(name).toMatch(new RegExp(`^${attemptId}\\.[0-9a-f]{8}\\.bad$`));
    const contents = await Promise.all(aside.map((name) => readFile(join(directory, name), 'utf8')));
    expect(contents.sort()).toEqual(['first', 'second']);
  });

  it('is a file like any other when its writer died before it had its name', async () => {
    const spooled = spooledOutcome();
    const name = `.${spooled.intent.attemptId}.0123456789abcdef.part`;
    await writeFile(join(directory, name), encodeSpooled(spooled));
    const [file] = await spool.list();
    expect(await spool.read(file as never)).toEqual({ kind: 'outcome', spooled });
    await spool.remove(file as never);
    expect(await readdir(directory)).toEqual([]);
  });

  it('is left alone while it may still be written, and is damaged a minute later', async () => {
    const { intent, outcome } = spooledOutcome();
    const name = `.${intent.attemptId}.0123456789abcdef.part`;
    await writeFile(join(directory, name), encodeSpooled({ intent, outcome }).slice(0, 100));
    const [file] = await spool.list();
    expect(await spool.read(file as never)).toBeUndefined();
    await utimes(join(directory, name), new Date(), new Date(Date.now() - 61_000));
    expect(await spool.read(file as never)).toEqual({ kind: 'damaged' });
    expect(await spool.setAside(file as never)).toBe(true);
    expect(await listed()).toEqual([]);
  });
});

describe('a directory that can’t be used', () => {
  it('is said once, for as long as it lasts, and never thrown', async () => {
    await writeFile(join(root, 'a'), 'a file where a directory is needed');
    expect(await spool.check()).toBe(false);
    expect(await spool.keep(spooledOutcome())).toBe(false);
    expect(await spool.keep(spooledOutcome())).toBe(false);
    expect(troubles).toEqual([{ action: 'write', errorCode: 'EEXIST' }]);
    await rm(join(root, 'a'));
    expect(await spool.keep(spooledOutcome())).toBe(true);
    await rm(join(root, 'a'), { recursive: true });
    await writeFile(join(root, 'a'), 'again');
    expect(await spool.keep(spooledOutcome())).toBe(false);
    expect(troubles).toHaveLength(2);
  });

  it('is found at the start when it is itself a file, and is not touched', async () => {
    await mkdir(join(root, 'a'));
    await writeFile(directory, 'mine');
    expect(await spool.check()).toBe(false);
    expect(await spool.list()).toEqual([]);
    expect(troubles).toEqual([
      { action: 'write', errorCode: 'ENOTDIR' },
      { action: 'list', errorCode: 'ENOTDIR' },
    ]);
    expect(await readFile(directory, 'utf8')).toBe('mine');
  });

  it('that isn’t there yet holds nothing, which is no trouble', async () => {
    expect(await spool.list()).toEqual([]);
    expect(troubles).toEqual([]);
  });

  it('is left as it was by the check: nothing stays behind', async () => {
    expect(await spool.check()).toBe(true);
    expect(await readdir(directory)).toEqual([]);
  });

  it('that takes names and no bytes, as a full disk does, keeps no half file', async () => {
    // The limit on the size of files fails the write after the open, where ENOSPC comes.
    const program = `
      import { createSpool } from './src/storage/spool.ts';
      import { spooledOutcome } from './test/support/spooled.ts';
      const troubles = [];
      const spool = createSpool({ directory: process.argv[1], onTrouble: (trouble) => troubles.push(trouble) });
      console.log(JSON.stringify([await spool.check(), await spool.keep(spooledOutcome()), troubles]));`;
    const { stdout, stderr } = spawnSync(
      'sh',
      ['-c', `trap '' XFSZ; ulimit -f 0; exec "$0" "$@"`, ...node(program), directory],
      { encoding: 'utf8', cwd: join(import.meta.dirname, '..', '..') },
    );
    expect(JSON.parse(stdout || stderr)).toEqual([false, false, [{ action: 'write', errorCode: 'EFBIG' }]]);
    expect(await readdir(directory)).toEqual([]);
  });
});

const straceWorks = spawnSync('strace', ['-o', '/dev/null', 'true']).status === 0;

it.runIf(straceWorks)(
  'brings the content to the disk before the name, and the name before it says so',
  async () => {
    const program = `
    import { createSpool } from './src/storage/spool.ts';
    import { spooledOutcome } from './test/support/spooled.ts';
    await createSpool({ directory: process.argv[1], onTrouble: () => {} }).keep(spooledOutcome());
    console.log('KEPT');`;
    const log = join(root, 'strace');
    execFileSync(
      'strace',
      ['-f', '-y', '-s', '16', '-e', 'trace=fsync,rename,write', '-o', log, ...node(program), directory],
      { cwd: join(import.meta.dirname, '..', '..') },
    );
    const calls = (await readFile(log, 'utf8')).split('\n').flatMap((line) => {
      if (line.includes('write(1') && line.includes('KEPT')) return ['said'];
      const [, name, target] = /(fsync|rename|write)\((.*)/.exec(line) ?? [];
      if (name === undefined || !target?.includes(directory)) return [];
      return [`${name} ${target.includes('.part') ? 'file' : 'directory'}`];
    });
    expect(calls).toEqual(['write file', 'fsync file', 'rename file', 'fsync directory', 'said']);
  },
);

function node(program: string): string[] {
  return [process.execPath, '--input-type=module-typescript', '--eval', program, '--'];
}
