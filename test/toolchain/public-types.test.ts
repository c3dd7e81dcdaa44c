import { execFile } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { expect, it, onTestFinished } from 'vitest';

const ROOT = join(import.meta.dirname, '..', '..');

/** What it prints: nothing where nothing is wrong. */
async function tsc(...options: readonly string[]): Promise<string> {
  const file = join(ROOT, 'node_modules', '.bin', 'tsc');
  return promisify(execFile)(file, options, { cwd: ROOT }).then(
    ({ stdout }) => stdout,
    ({ stdout }: { stdout: string }) => stdout,
  );
}

it('the types of every entry are whole for an app that checks those of its libraries too', async () => {
  // Inside the checkout, so that they find the packages that an app has.
  const directory = mkdtempSync(join(ROOT, 'node_modules', '.types-'));
  onTestFinished(() => rmSync(directory, { recursive: true, force: true }));
  expect(await tsc('-p', 'src', '--emitDeclarationOnly', '--outDir', directory)).toBe('');
  const entries = ['index', 'worker', 'simulator', 'testing'].map((name) => join(directory, `${name}.d.ts`));
  const strict = ['--strict', '--skipLibCheck', 'false', '--types', 'node', '--target', 'es2023'];
  const modules = ['--module', 'nodenext', '--allowImportingTsExtensions', '--noEmit', '--ignoreConfig'];
  expect(await tsc(...strict, ...modules, ...entries)).toBe('');
}, 60_000);
