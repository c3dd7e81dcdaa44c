import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { resolveConfig } from '../../src/runtime/options.ts';

// No engine and no YAML parser here: what these files promise is read from their text.
const REPOSITORY = join(import.meta.dirname, '..', '..');
const read = (name: string) => readFileSync(join(REPOSITORY, name), 'utf8');
const compose = read('docker-compose.yml');
const dockerfile = read('examples/docker/Dockerfile');
const readme = read('README.md');

function service(name: string): string {
  const [, body] = new RegExp(`^  ${name}:\\n((?:    .*\\n|\\n)+)`, 'm').exec(compose) ?? [];
  return body ?? '';
}

test('Compose gives a worker longer to stop than a POST may take', () => {
  const [, seconds] = /stop_grace_period: (\d+)s/.exec(service('worker')) ?? [];
  const { deadlines } = resolveConfig({}).operations['text-to-music'];
  expect(Number(seconds) * 1_000).toBeGreaterThan(deadlines.submissionMs + 10_000);
});

test('Compose runs migrate, worker and poller, the last two after the first has succeeded', () => {
  for (const name of ['migrate', 'worker', 'poller']) expect(service(name)).toContain(`command: ["${name}"]`);
  expect(service('migrate')).toContain('restart: "no"');
  const anchor = /^x-process: &process\n((?: {2}.*\n)+)/m.exec(compose)?.[1] ?? '';
  expect(anchor).toMatch(/migrate:\n\s+condition: service_completed_successfully/);
  expect(anchor).toMatch(/postgres:\n\s+condition: service_healthy/);
  for (const name of ['worker', 'poller']) expect(service(name)).toContain('<<: *process');
  expect(service('postgres')).toContain('image: postgres:18');
  expect(readme).toContain('](docker-compose.yml)');
});

test('node is process 1 of the image, so that SIGTERM reaches it', () => {
  const [, entrypoint] = /^ENTRYPOINT (.+)$/m.exec(dockerfile) ?? [];
  expect(JSON.parse(entrypoint ?? 'null')).toEqual(['node', 'dist/cli/onetake.js']);
  expect(dockerfile).toMatch(/^CMD \["start"\]$/m);
  expect(dockerfile).toMatch(/^USER node$/m);
});

test('the image copies only what the build context holds', () => {
  const allowed = read('.dockerignore')
    .split('\n')
    .filter((line) => line.startsWith('!'))
    .map((line) => line.slice(1));
  const copied = [...dockerfile.matchAll(/^COPY (?!--from)(.+) \S+$/gm)].flatMap(([, sources]) =>
    (sources ?? '').split(' '),
  );
  expect(copied.length).toBeGreaterThan(5);
  expect(copied.filter((name) => !allowed.includes(name) || !existsSync(join(REPOSITORY, name)))).toEqual([]);
});

test('the configuration of the containers is one', () => {
  expect(resolveConfig(JSON.parse(read('examples/docker/onetake.config.json'))).storage.directory).toBe(
    '/generations',
  );
  expect(dockerfile).toContain('/generations');
  expect(compose).toContain('generations:/generations');
});
