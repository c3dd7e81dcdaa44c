import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import type { TransitionCause } from '../../src/core/circuit-breaker.ts';
import { LEGAL_MOVES, REQUEST_STATES } from '../../src/core/generation-request.ts';
import { INSTALLATION_TROUBLES } from '../../src/core/installation.ts';
import { resolveConfig } from '../../src/runtime/options.ts';
import { readMagicPrompt } from '../../src/simulator/magic-prompt.ts';
import { createMetrics } from '../../src/telemetry/metrics.ts';
import { codeBlocks, REPOSITORY, readPage, tableRows } from './pages.ts';

const code = (cell = '') => [...cell.matchAll(/`([^`]+)`/g)].map(([, text]) => text ?? '');

describe('docs/configuration.md', () => {
  const rows = tableRows(readPage('docs/configuration.md'), 'setting').map(([setting, value, bounds]) => ({
    path: code(setting)[0] ?? '',
    value: value ?? '',
    bounds: bounds ?? '',
  }));

  test('lists every setting that there is, and no other', () => {
    const paths = leaves(resolveConfig({})).map(([path]) => path);
    expect(rows.map(({ path }) => path).sort()).toEqual([...new Set(paths)].sort());
  });

  test('states the defaults that hold', () => {
    const defaults = new Map(leaves(resolveConfig({})));
    const shown = (value: unknown) => {
      if (value === null) return 'none';
      if (Array.isArray(value)) return JSON.stringify(value);
      return typeof value === 'number' ? value.toLocaleString('en-US') : String(value);
    };
    for (const { path, value } of rows) {
      expect(value.replaceAll('`', ''), path).toBe(shown(defaults.get(path)));
    }
  });

  test.each(
    rows.flatMap(({ path, bounds }) => {
      const [, min, max] = /^([\d,.]+) to ([\d,.]+)$/.exec(bounds) ?? [];
      return min === undefined || max === undefined ? [] : [{ path, min: toNumber(min), max: toNumber(max) }];
    }),
  )('states the bounds of $path', ({ path, min, max }) => {
    expect(outOfBounds(path, min), `${min}`).toBe(false);
    expect(outOfBounds(path, min - 1), `${min - 1}`).toBe(true);
    expect(outOfBounds(path, max), `${max}`).toBe(false);
    expect(outOfBounds(path, max + 1), `${max + 1}`).toBe(true);
  });
});

describe('docs/states.md', () => {
  const page = readPage('docs/states.md');

  test('draws the legal moves and nothing else', () => {
    const legal = REQUEST_STATES.flatMap((from) => LEGAL_MOVES[from].map((to) => `${from} ${to}`));
    expect(
      arrowsOf(page)
        .map(([from, to]) => `${from} ${to}`)
        .sort(),
    ).toEqual(legal.sort());
  });

  test('says of each state what it means', () => {
    expect(tableRows(page, 'state').flatMap(([state]) => code(state))).toEqual(
      [...REQUEST_STATES].sort(byList(page)),
    );
  });
});

describe('docs/breaker.md', () => {
  test('draws the transitions, each under the cause that is stored', () => {
    const causes: Record<Exclude<TransitionCause, 'operator' | 'override_expired'>, [string, string]> = {
      failure_threshold: ['closed', 'open'],
      probe_granted: ['open', 'half_open'],
      probe_succeeded: ['half_open', 'closed'],
      probe_failed: ['half_open', 'open'],
      probe_neutral: ['half_open', 'open'],
      probe_lost: ['half_open', 'open'],
    };
    const drawn = arrowsOf(readPage('docs/breaker.md')).map(([from, to, cause]) => [cause, [from, to]]);
    expect(Object.fromEntries(drawn)).toEqual(causes);
  });
});

describe('docs/metrics.md', () => {
  test('lists every metric and its labels, and no other', async () => {
    const page = readPage('docs/metrics.md');
    const listed = ['gauge', 'counter'].flatMap((kind) =>
      tableRows(page, kind).map(([name, labels]) => `${code(name)[0]} ${code(labels).join(' ')}`.trim()),
    );
    expect(listed.sort()).toEqual(metricsInCode().sort());
    const shown = await createMetrics().text(NO_FACTS);
    const served = [...shown.matchAll(/^# TYPE (onetake_\S+)/gm)].map(([, name]) => name ?? '');
    const own = served.filter((name) => !/^onetake_(process_(?!trouble)|nodejs_)/.test(name));
    expect(own.sort()).toEqual(listed.map((line) => line.split(' ', 1)[0]).sort());
  });

  test('has alerts look for an increase only of what is there at 0', async () => {
    const { text } = readPage('docs/metrics.md');
    const watched = [...text.matchAll(/increase\((onetake_\w+[^[]*)\[/g)].map(([, series]) => series);
    expect(watched.length).toBeGreaterThan(2);
    const shown = await createMetrics().text(NO_FACTS);
    for (const series of watched) expect(shown).toContain(`\n${series} 0\n`);
  });
});

describe('docs/operations.md', () => {
  test('lists every event that is emitted, and no other', () => {
    const listed = tableRows(readPage('docs/operations.md'), 'event').flatMap(([event]) => code(event));
    expect(listed.sort()).toEqual([...emittedEvents()].sort());
  });
});

describe('docs/operations.md, restored, cloned, failed over', () => {
  test('lists every trouble that a database can be in', () => {
    const listed = tableRows(readPage('docs/operations.md'), '`trouble`').flatMap(([trouble]) =>
      code(trouble),
    );
    expect(listed.sort()).toEqual([...INSTALLATION_TROUBLES].sort());
  });
});

describe('docs/testing-your-app.md', () => {
  test('lists magic prompts that the simulator knows', () => {
    const rows = tableRows(readPage('docs/testing-your-app.md'), 'in the prompt');
    const settings = rows.flatMap(([setting]) => code(setting));
    expect(settings.length).toBeGreaterThan(10);
    for (const setting of settings) {
      const problems: string[] = [];
      readMagicPrompt(`a storm [simulate status=502 ${setting}]`, problems);
      expect(problems, setting).toEqual([]);
    }
  });
});

/** Paths and values of a configuration; what users name themselves is a `*`, so that an account is every account. */
function leaves(config: object): [string, unknown][] {
  const walk = (value: unknown, path: readonly string[]): [string, unknown][] => {
    // Many, and each another one: docs/preflight.md has them all.
    if (path.at(-1) === 'limits') return [[path.join('.'), 'the table']];
    if (typeof value !== 'object' || value === null || Array.isArray(value)) return [[path.join('.'), value]];
    return Object.entries(value).flatMap(([key, member]) => {
      const named = path.length === 1 && ['accounts', 'providers', 'operations'].includes(path[0] ?? '');
      return walk(member, [...path, named ? '*' : key]);
    });
  };
  return walk(config, []);
}

/** Whether one setting alone is refused for its own sake; a conflict with another setting's default isn't that. */
function outOfBounds(path: string, value: number): boolean {
  const keys = path
    .replace('operations.*', 'operations.text-to-music')
    .replace('accounts.*', 'accounts.default')
    .split('.');
  const input = keys.reduceRight<unknown>((inner, key) => ({ [key]: inner }), value);
  try {
    resolveConfig(input);
    return false;
  } catch (error) {
    return /expected a (whole )?number/.test(String(error));
  }
}

function toNumber(grouped: string): number {
  return Number(grouped.replaceAll(',', ''));
}

/** `from --> to: label`, without the entry and the ends. */
function arrowsOf(page: ReturnType<typeof readPage>): [from: string, to: string, label: string][] {
  const chart = codeBlocks(page).find(({ language }) => language === 'mermaid')?.code ?? '';
  return [...chart.matchAll(/^ *(\w+) --> (\w+): (.+)$/gm)].map(([, from, to, label]) => [
    from ?? '',
    to ?? '',
    label ?? '',
  ]);
}

/** The order of the page's own table: every state once, in any order. */
function byList(page: ReturnType<typeof readPage>): (a: string, b: string) => number {
  const order = tableRows(page, 'state').flatMap(([state]) => code(state));
  return (a, b) => order.indexOf(a) - order.indexOf(b);
}

function emittedEvents(): Set<string> {
  const floors = ['lifecycle', 'runtime'].map((floor) => join(REPOSITORY, 'src', floor));
  const sources = floors.flatMap((floor) =>
    readdirSync(floor).map((name) => readFileSync(join(floor, name), 'utf8')),
  );
  const found = sources.flatMap((text) => [...text.matchAll(/(?:emit\(|name: )'([a-z]+:[a-z]+)'/g)]);
  return new Set(found.map(([, name]) => name ?? ''));
}

const NO_FACTS = { requests: [], oldest: [], attention: [], breakers: [], accounts: [] };

/** Each with its labels, as declared: a metric without a value shows none. */
function metricsInCode(): string[] {
  const source = readFileSync(join(REPOSITORY, 'src/telemetry/metrics.ts'), 'utf8');
  const declared = [
    ...source.matchAll(/\b(?:counter|gauge)\(\s*'(\w+)',\s*(?:'[^']*'|"[^"]*")(?:,\s*\[([^\]]*)\])?,?\s*\)/g),
  ].map(([, name, labels = '']) => {
    const names = [...labels.matchAll(/'(\w+)'/g)].map(([, label]) => label);
    return `onetake_${name} ${names.join(' ')}`.trim();
  });
  return [...declared, 'onetake_database_up'];
}
