import { mkdirSync, mkdtempSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { identifyProcess, processState } from '../../src/embedded/process-identity.ts';
import { createWorkspace, sweepWorkspaces } from '../../src/embedded/workspace.ts';
import { startChild } from '../support/children.ts';
import { useOwnTemporaryDirectory } from './own-temporary-directory.ts';

describe('process identity', () => {
  it('tells a running process from an ended one', async () => {
    await using child = startChild({ module: 'process.stdin.resume()' });
    const identity = identifyProcess(child.pid);
    expect(processState(identity)).toBe('running');
    await child.kill();
    expect(processState(identity)).toBe('gone');
  });

  it('is not fooled by a recycled pid', () => {
    expect(processState({ ...identifyProcess(process.pid), startedAt: 'at another time' })).toBe('gone');
  });

  it('knows nothing of processes on another host', () => {
    expect(processState({ ...identifyProcess(process.pid), host: 'elsewhere' })).toBe('unknown');
  });

  it.runIf(process.platform === 'linux')('knows nothing of processes in another container', () => {
    expect(processState({ ...identifyProcess(process.pid), pidNamespace: 'pid:[1]' })).toBe('unknown');
  });
});

describe('the sweep', () => {
  const temporary = useOwnTemporaryDirectory();
  const leave = (owner: unknown): string => {
    const directory = mkdtempSync(join(temporary.path, 'onetake-postgres-'));
    if (owner !== undefined) writeFileSync(join(directory, 'owner.json'), JSON.stringify(owner));
    return directory;
  };
  const names = (...directories: string[]) =>
    directories.map((directory) => directory.slice(temporary.path.length + 1));

  it('removes the workspace of a supervisor whose pid now belongs to another process', async () => {
    leave({ ...identifyProcess(process.pid), startedAt: 'at another time' });
    await sweepWorkspaces(() => undefined);
    expect(temporary.entries()).toEqual([]);
  });

  it('leaves live workspaces, unmarked directories, foreign owners and other names alone', async () => {
    const kept = names(
      createWorkspace(),
      leave(undefined),
      leave('nonsense'),
      leave({ ...identifyProcess(process.pid), host: 'elsewhere', startedAt: 'at another time' }),
    );
    mkdirSync(join(temporary.path, 'onetake-something'));
    writeFileSync(join(temporary.path, 'onetake-postgres-file'), '');
    await sweepWorkspaces(() => undefined);
    expect(temporary.entries()).toEqual([...kept, 'onetake-postgres-file', 'onetake-something'].sort());
  });
});
