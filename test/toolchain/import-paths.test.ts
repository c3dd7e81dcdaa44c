import { globSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { describe, expect, test } from 'vitest';

// The linter sees one import at a time; this follows the whole path. Type-only imports vanish when the code
// runs, so they lead nowhere here (the linter refuses them where they are direct).
const source = path.resolve(import.meta.dirname, '../../src');
const importPattern =
  /^\s*(?:import|export)\s(?!type\b)[^;'"]*?from\s*['"](\.[^'"]+)['"]|import\(\s*['"](\.[^'"]+)['"]\s*\)|^\s*import\s*['"](\.[^'"]+)['"]/gm;

function importsOf(text: string): string[] {
  return [...text.matchAll(importPattern)].map((match) => match[1] ?? match[2] ?? match[3] ?? '');
}

/** Shortest import path from a file to one that `isTarget` accepts, as names relative to src; empty if none. */
function pathBetween(start: string, isTarget: (name: string) => boolean): string[] {
  const queue: string[][] = [[start]];
  const seen = new Set([start]);
  for (let route = queue.shift(); route !== undefined; route = queue.shift()) {
    const here = route.at(-1) ?? start;
    if (isTarget(here)) return route;
    for (const specifier of importsOf(readFileSync(path.join(source, here), 'utf8'))) {
      const next = path.join(path.dirname(here), specifier);
      if (seen.has(next)) continue;
      seen.add(next);
      queue.push([...route, next]);
    }
  }
  return [];
}

const isBreakerFile = (name: string) =>
  /(^|\/)(circuit-breakers?|breaker-history|health-due|probe|probe-candidates|announce|apply-health)\.ts$/.test(
    name,
  );

describe('import paths', () => {
  test('are read from static, re-exporting, side-effect and dynamic imports, not from type imports', () => {
    const text = [
      "import { a } from './a.ts';",
      'import {\n  b,\n  type B,\n} from "./b.ts";',
      "export * from './c.ts';",
      "import './d.ts';",
      "const e = () => import('./e.ts');",
      "import type { F } from './f.ts';",
      "export type { G } from './g.ts';",
      "import pg from 'pg';",
    ].join('\n');
    expect(importsOf(text)).toEqual(['./a.ts', './b.ts', './c.ts', './d.ts', './e.ts']);
  });

  const pollFiles = globSync('lifecycle/{poll,hand-off}*{.ts,/**/*.ts}', { cwd: source });

  test('are followed from poll and hand-off', () => {
    expect(pollFiles).toEqual(expect.arrayContaining(['lifecycle/poll.ts', 'lifecycle/hand-off.ts']));
  });

  test.each(pollFiles)('lead from %s to no file of the breaker', (file) => {
    expect(pathBetween(file, isBreakerFile)).toEqual([]);
  });
});
