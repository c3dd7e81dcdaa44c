import { describe, expect, expectTypeOf, it } from 'vitest';
import { invalidBreakerSetting } from '../../src/core/circuit-breaker.ts';
import { OnetakeError } from '../../src/core/errors.ts';
import { OPERATION_NAMES } from '../../src/core/operations.ts';
import { defineConfig, type OnetakeConfig } from '../../src/runtime/define-config.ts';
import { ConfigurationError, type ConfigurationProblem, resolveConfig } from '../../src/runtime/options.ts';

const CANARY = 'canary-5e1f-SECRET';

function problemsOf(input: unknown): readonly ConfigurationProblem[] {
  return refusalOf(input)?.problems ?? [];
}

function refusalOf(input: unknown): ConfigurationError | undefined {
  try {
    resolveConfig(input);
    return undefined;
  } catch (error) {
    if (error instanceof ConfigurationError) return error;
    throw error;
  }
}

function pathsOf(input: unknown): string[] {
  return problemsOf(input).map(({ path }) => path);
}

/** A configuration that says one thing only: `at('worker.concurrency', 3)` is `{ worker: { concurrency: 3 } }`. */
function at(path: string, value: unknown): Record<string, unknown> {
  const [first = '', ...rest] = path.split('.');
  return { [first]: rest.length === 0 ? value : at(rest.join('.'), value) };
}

const OPERATION = 'operations.text-to-music';

const NUMERIC_SETTINGS: readonly { path: string; min: number; max: number; byDefault: number }[] = [
  { path: 'accounts.default.requestsPerMinute', min: 1, max: 1_000_000, byDefault: 60 },
  { path: 'accounts.default.maxConcurrentGenerations', min: 1, max: 100_000, byDefault: 4 },
  { path: `${OPERATION}.breaker.failureThreshold`, min: 1, max: 1_000, byDefault: 3 },
  { path: `${OPERATION}.breaker.cooldownMs`, min: 100, max: 86_400_000, byDefault: 30_000 },
  { path: `${OPERATION}.breaker.maxCooldownMs`, min: 30_000, max: 86_400_000, byDefault: 600_000 },
  { path: `${OPERATION}.deadlines.connectMs`, min: 50, max: 600_000, byDefault: 5_000 },
  { path: `${OPERATION}.deadlines.firstResponseMs`, min: 50, max: 600_000, byDefault: 60_000 },
  { path: `${OPERATION}.deadlines.submissionMs`, min: 50, max: 600_000, byDefault: 90_000 },
  { path: `${OPERATION}.leaseMs`, min: 92_001, max: 2_147_483_647, byDefault: 100_000 },
  { path: `${OPERATION}.rearmQuarantineMs`, min: 0, max: 2_147_483_647, byDefault: 120_000 },
  { path: `${OPERATION}.maxSubmissions`, min: 1, max: 100, byDefault: 3 },
  { path: `${OPERATION}.maxRunMs`, min: 1_000, max: 86_400_000, byDefault: 600_000 },
  { path: `${OPERATION}.stream.idleMs`, min: 50, max: 3_600_000, byDefault: 600_000 },
  { path: `${OPERATION}.stream.totalMs`, min: 50, max: 86_400_000, byDefault: 1_800_000 },
  { path: 'worker.concurrency', min: 1, max: 1_000, byDefault: 8 },
  { path: 'worker.rescueIntervalMs', min: 100, max: 60_000, byDefault: 1_000 },
  { path: 'poller.intervalMs', min: 50, max: 3_600_000, byDefault: 3_000 },
  { path: 'poller.maxIntervalMs', min: 50, max: 3_600_000, byDefault: 30_000 },
  { path: 'poller.concurrency', min: 1, max: 1_000, byDefault: 16 },
];

const NO_NUMBERS: readonly unknown[] = [
  ...['', ' ', 'abc', '3abc', '1e3', '60', '60 ', '30s', '-1', '0', '0.5', 'Infinity', '2147483648'],
  ...[-1, 0.5, 2.000001, Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY, 2_147_483_648],
  ...[null, [], [60], {}, { valueOf: () => 60 }, true, false, 60n, Object(60), () => 60],
];

const FRACTIONS = [
  { path: `${OPERATION}.breaker.cooldownGrowth`, min: 1, max: 10, byDefault: 1, within: 1.05 },
  { path: `${OPERATION}.breaker.jitter`, min: 0, max: 0.5, byDefault: 0, within: 0.1 },
];

function settingOf(config: unknown, path: string): unknown {
  return path.split('.').reduce((value, key) => (value as Record<string, unknown>)[key], config);
}

describe.each(NUMERIC_SETTINGS)('the setting $path', ({ path, min, max, byDefault }) => {
  it.each(NO_NUMBERS)('refuses %o, naming itself alone', (value) => {
    expect(pathsOf(at(path, value))).toEqual([path]);
  });

  it('is its default only when it is left out or undefined', () => {
    expect(settingOf(resolveConfig({}), path)).toBe(byDefault);
    expect(settingOf(resolveConfig(at(path, undefined)), path)).toBe(byDefault);
  });

  it('never takes zero for its default', () => {
    if (min === 0) expect(settingOf(resolveConfig(at(path, 0)), path)).toBe(0);
    else expect(pathsOf(at(path, 0))).toEqual([path]);
  });

  it('allows its bounds and nothing beyond them', () => {
    const outOfBounds = (value: number) =>
      problemsOf(at(path, value)).some(({ message }) => message.startsWith('expected a whole number'));
    expect([min - 1, min, max, max + 1].map(outOfBounds)).toEqual([true, false, false, true]);
  });
});

describe.each(FRACTIONS)('the setting $path', ({ path, min, max, byDefault, within }) => {
  const noFractions = NO_NUMBERS.filter(
    (value) => typeof value !== 'number' || !(value >= min && value <= max),
  );

  it.each(noFractions)('refuses %o, naming itself alone', (value) => {
    expect(pathsOf(at(path, value))).toEqual([path]);
  });

  it('is its default only when it is left out or undefined', () => {
    expect(settingOf(resolveConfig({}), path)).toBe(byDefault);
    expect(settingOf(resolveConfig(at(path, undefined)), path)).toBe(byDefault);
  });

  it('takes its bounds and every fraction between them, as it is written', () => {
    for (const value of [min, within, max - 0.001, max]) {
      expect(settingOf(resolveConfig(at(path, value)), path)).toBe(value);
    }
  });

  it('refuses what lies beyond its bounds, and says them', () => {
    for (const value of [min - 0.001, max + 0.001]) {
      expect(problemsOf(at(path, value))).toEqual([
        { path, message: `expected a number from ${min} to ${max}, got ${value}.` },
      ]);
    }
  });
});

describe('the breaker of an operation', () => {
  const breaker = (settings: unknown) => at(`${OPERATION}.breaker`, settings);
  const resolved = (settings: unknown) =>
    resolveConfig(breaker(settings)).operations['text-to-music'].breaker;

  it('has a cap of ten minutes by default, or of its cooldown where that is longer', () => {
    expect(resolved({ cooldownMs: 600_000 }).maxCooldownMs).toBe(600_000);
    expect(resolved({ cooldownMs: 600_001 }).maxCooldownMs).toBe(600_001);
    expect(resolved({ cooldownMs: 86_400_000 }).maxCooldownMs).toBe(86_400_000);
  });

  it('takes a cap that is its cooldown, and none that is shorter', () => {
    expect(resolved({ cooldownMs: 5_000, maxCooldownMs: 5_000 }).maxCooldownMs).toBe(5_000);
    expect(problemsOf(breaker({ cooldownMs: 5_000, maxCooldownMs: 4_999 }))).toEqual([
      {
        path: `${OPERATION}.breaker.maxCooldownMs`,
        message: 'expected a whole number from cooldownMs (5,000) to 86,400,000, got 4999.',
      },
    ]);
  });

  it('compares a cap with no cooldown that was refused', () => {
    const path = `${OPERATION}.breaker.cooldownMs`;
    expect(pathsOf(breaker({ cooldownMs: '30000', maxCooldownMs: 200 }))).toEqual([path]);
    expect(pathsOf(breaker({ cooldownMs: 86_400_001 }))).toEqual([path]);
  });

  it.each(['true', 'yes', 1, 0, null, {}, []])('takes no %o for shadow', (shadow) => {
    expect(pathsOf(breaker({ shadow }))).toEqual([`${OPERATION}.breaker.shadow`]);
  });

  it('has a shadow of its own', () => {
    const { operations } = resolveConfig(breaker({ shadow: true }));
    expect(operations['text-to-music'].breaker.shadow).toBe(true);
    expect(operations['video-to-music'].breaker.shadow).toBe(false);
  });

  it('is nothing that the core would refuse, whatever was written', () => {
    const written = [
      {},
      { failureThreshold: 1, cooldownMs: 100, cooldownGrowth: 10, maxCooldownMs: 100, jitter: 0.5 },
      { failureThreshold: 1_000, cooldownMs: 86_400_000, jitter: 0.001, shadow: true },
    ];
    for (const settings of written) expect(invalidBreakerSetting(resolved(settings))).toBeUndefined();
  });
});

describe('resolveConfig', () => {
  it('fills in everything that is left out', () => {
    const operation = {
      breaker: {
        failureThreshold: 3,
        cooldownMs: 30_000,
        cooldownGrowth: 1,
        maxCooldownMs: 600_000,
        jitter: 0,
        shadow: false,
      },
      deadlines: { connectMs: 5_000, firstResponseMs: 60_000, submissionMs: 90_000 },
      leaseMs: 100_000,
      rearmQuarantineMs: 120_000,
      maxSubmissions: 3,
      resubmitOn: [],
      maxRunMs: 600_000,
      mode: 'async',
      stream: {
        idleMs: 600_000,
        totalMs: 1_800_000,
        contentCodes: expect.arrayContaining(['CONTENT_POLICY']),
      },
    };
    expect(resolveConfig({})).toEqual({
      database: { connectionStringEnv: 'DATABASE_URL' },
      providers: { sonilo: { baseUrl: 'https://api.sonilo.com' } },
      accounts: {
        default: {
          provider: 'sonilo',
          apiKeyEnv: 'SONILO_API_KEY',
          requestsPerMinute: 60,
          maxConcurrentGenerations: 4,
        },
      },
      operations: Object.fromEntries(
        OPERATION_NAMES.map((name) => [
          name,
          { ...operation, limits: expect.any(Object), maxRunMs: name === 'dubbing' ? 7_200_000 : 600_000 },
        ]),
      ),
      worker: { concurrency: 8, rescueIntervalMs: 1_000, spoolDirectory: '.onetake/spool' },
      poller: { intervalMs: 3_000, maxIntervalMs: 30_000, concurrency: 16 },
      storage: { directory: null, s3: null, allowPrivateHosts: false },
    });
  });

  it('keeps everything that is written down', () => {
    const written = {
      database: { connectionStringEnv: 'PG_URL' },
      providers: {
        sonilo: { baseUrl: 'https://api.sonilo.com' },
        mine: { baseUrl: 'https://mine.example/v2' },
      },
      accounts: {
        'studio.a-1': {
          provider: 'mine',
          apiKeyEnv: 'MY_KEY_2',
          requestsPerMinute: 7,
          maxConcurrentGenerations: 2,
        },
      },
      operations: {
        'text-to-music': {
          breaker: {
            failureThreshold: 5,
            cooldownMs: 1_000,
            cooldownGrowth: 1.5,
            maxCooldownMs: 9_000,
            jitter: 0.25,
            shadow: true,
          },
          deadlines: { connectMs: 50, firstResponseMs: 51, submissionMs: 52 },
          leaseMs: 2_053,
          rearmQuarantineMs: 0,
          maxSubmissions: 1,
          resubmitOn: [503, 500],
          maxRunMs: 1_000,
        },
      },
      worker: { concurrency: 1, rescueIntervalMs: 100, spoolDirectory: '/var/spool/onetake' },
      poller: { intervalMs: 500, maxIntervalMs: 500, concurrency: 1 },
      storage: { directory: './generations', allowPrivateHosts: true },
    } as const satisfies OnetakeConfig;
    expect(resolveConfig(defineConfig(written))).toMatchObject(written);
  });

  it('defaults the lease to the submission deadline and ten seconds', () => {
    const { operations } = resolveConfig(at(`${OPERATION}.deadlines.submissionMs`, 120_000));
    expect(operations['text-to-music'].leaseMs).toBe(130_000);
    expect(operations['video-to-music'].leaseMs).toBe(100_000);
  });

  it('tells all problems at once, each by its path, in the message and one by one', () => {
    const refusal = refusalOf({
      acounts: {},
      operations: { 'text-to-music': { breaker: { cooldownMs: null }, maxRunMs: 0.5 } },
      worker: { concurrency: '60' },
      storage: { allowPrivateHosts: 'yes', directory: 7 },
    });
    const paths = [
      'acounts',
      'operations.text-to-music.breaker.cooldownMs',
      'operations.text-to-music.maxRunMs',
      'storage.allowPrivateHosts',
      'storage.directory',
      'worker.concurrency',
    ];
    expect(refusal).toBeInstanceOf(OnetakeError);
    expect(refusal?.code).toBe('configuration_invalid');
    expect(refusal?.problems.map(({ path }) => path).sort()).toEqual(paths);
    expect(refusal?.message).toContain('has 6 problems:');
    for (const { path, message } of refusal?.problems ?? []) {
      expect(refusal?.message.split('\n')).toContain(`  ${path}: ${message}`);
    }
    expect(refusal?.message).toContain(
      '\n  worker.concurrency: expected a whole number from 1 to 1,000, got "60".',
    );
  });

  it.each([undefined, null, [], 'x', 3, () => ({}), new Map(), Promise.resolve({})])(
    'refuses %o as a whole',
    (input) => {
      expect(pathsOf(input)).toEqual(['']);
    },
  );

  it.each([
    'database',
    'providers',
    'accounts',
    'operations',
    'worker',
    'poller',
    'storage',
    'providers.sonilo',
    'accounts.default',
    OPERATION,
    `${OPERATION}.breaker`,
    `${OPERATION}.deadlines`,
  ])('refuses %s when it is no plain object', (path) => {
    for (const value of [null, [], 'x', 3, false, new Map(), Object.create({ concurrency: 3 })]) {
      expect(pathsOf(at(path, value))).toEqual([path]);
    }
  });

  it.each([
    ['acounts', 'accounts'],
    ['database.conectionStringEnv', 'connectionStringEnv'],
    ['providers.sonilo.baseURL', 'baseUrl'],
    ['accounts.default.apiKey', 'apiKeyEnv'],
    ['accounts.default.requestPerMinute', 'requestsPerMinute'],
    ['operations.text-to-musik', 'text-to-music'],
    [`${OPERATION}.leaseMS`, 'leaseMs'],
    [`${OPERATION}.breaker.failureTreshold`, 'failureThreshold'],
    [`${OPERATION}.breaker.cooldownGrow`, 'cooldownGrowth'],
    [`${OPERATION}.breaker.maxCooldown`, 'maxCooldownMs'],
    [`${OPERATION}.deadlines.conectMs`, 'connectMs'],
    ['worker.concurency', 'concurrency'],
    ['poller.intervallMs', 'intervalMs'],
    ['storage.dir', 'directory'],
  ])('refuses the unknown setting %s and suggests a known one', (path, near) => {
    const [problem, ...others] = problemsOf(at(path, {}));
    expect(others).toEqual([]);
    expect(problem?.path).toBe(path);
    expect(problem?.message).toMatch(/^unknown setting\./);
    expect(problem?.message).toContain(near);
  });

  it('says what is known where nothing is near', () => {
    expect(problemsOf({ worker: { zzzzzzzz: 1 } })[0]?.message).toBe(
      'unknown setting. Known here: concurrency, rescueIntervalMs, spoolDirectory.',
    );
  });

  it('reads own keys only, and has no way in through a prototype', () => {
    expect(pathsOf(JSON.parse('{"__proto__": {"worker": {"concurrency": 1}}}'))).toEqual(['__proto__']);
    expect(pathsOf(JSON.parse('{"accounts": {"__proto__": {}}}'))).toEqual(['accounts.__proto__']);
    expect(pathsOf({ constructor: 1, toString: 1, worker: { hasOwnProperty: 1 } })).toEqual([
      'constructor',
      'toString',
      'worker.hasOwnProperty',
    ]);
    const config = resolveConfig({ accounts: { constructor: { apiKeyEnv: 'K' } } });
    expect(Object.keys(config.accounts)).toEqual(['constructor']);
    expect(resolveConfig({}).accounts['constructor']).toBeUndefined();
    expect(resolveConfig({}).providers['toString']).toBeUndefined();
    expect(({} as Record<string, unknown>)['concurrency']).toBeUndefined();
  });
});

describe('deadlines', () => {
  it.each([
    [{ connectMs: 60_000 }, 'connectMs', 'less than firstResponseMs (60,000, the default)'],
    [{ firstResponseMs: 90_000 }, 'firstResponseMs', 'less than submissionMs (90,000, the default)'],
    [{ submissionMs: 60_000 }, 'submissionMs', 'more than firstResponseMs (60,000, the default)'],
    [{ connectMs: 300, firstResponseMs: 300 }, 'firstResponseMs', 'more than connectMs (300)'],
    [
      { firstResponseMs: 301, submissionMs: 300, connectMs: 50 },
      'submissionMs',
      'more than firstResponseMs (301)',
    ],
  ])('refuses %o, which do not rise, and blames a written one', (deadlines, blamed, relation) => {
    const problems = problemsOf(at(`${OPERATION}.deadlines`, deadlines));
    expect(problems.map(({ path }) => path)).toEqual([`${OPERATION}.deadlines.${blamed}`]);
    expect(problems[0]?.message).toContain(relation);
  });

  it('fit into the lease with more than two seconds to spare', () => {
    const operation = (leaseMs: number) =>
      at(OPERATION, { leaseMs, deadlines: { connectMs: 50, firstResponseMs: 60, submissionMs: 1_000 } });
    expect(problemsOf(operation(3_000))).toEqual([
      {
        path: `${OPERATION}.leaseMs`,
        message: 'expected a whole number above 3,000 (submissionMs + 2,000), up to 2,147,483,647, got 3000.',
      },
    ]);
    expect(problemsOf(operation(3_001))).toEqual([]);
  });

  it('of the poller may be equal, not falling', () => {
    expect(pathsOf({ poller: { intervalMs: 30_001 } })).toEqual(['poller.intervalMs']);
    expect(pathsOf({ poller: { maxIntervalMs: 2_999 } })).toEqual(['poller.maxIntervalMs']);
    expect(pathsOf({ poller: { intervalMs: 200, maxIntervalMs: 200 } })).toEqual([]);
  });
});

describe('one mistake', () => {
  it('is told once, not again where others are compared with it', () => {
    const deadlines = { firstResponseMs: 95_000, submissionMs: '120000' };
    expect(pathsOf(at(OPERATION, { deadlines, leaseMs: 50_000 }))).toEqual([
      `${OPERATION}.deadlines.submissionMs`,
    ]);
    expect(pathsOf({ providers: null, accounts: { default: { provider: 'sonilo' } } })).toEqual([
      'providers',
    ]);
  });
});

describe.each(['storage.directory', 'worker.spoolDirectory'])('%s', (setting) => {
  it.each(['', '  ', `a\u0000${CANARY}`, null, 3, []])('refuses %j', (directory) => {
    const refusal = refusalOf(at(setting, directory));
    expect(refusal?.problems.map(({ path }) => path)).toEqual([setting]);
    expect(refusal?.message).not.toContain(CANARY);
  });

  it('stays as it is written', () => {
    expect(resolveConfig({ storage: { directory: './a b/ü' } }).storage.directory).toBe('./a b/ü');
  });
});

describe('resubmitOn', () => {
  it.each([null, {}, '502', 502, true])('refuses %o, which is no list', (value) => {
    expect(pathsOf(at(`${OPERATION}.resubmitOn`, value))).toEqual([`${OPERATION}.resubmitOn`]);
  });

  it('takes each of 500, 502, 503 and 504 once, and names what is wrong by its place', () => {
    const path = `${OPERATION}.resubmitOn`;
    expect(pathsOf(at(path, [500, 502, 503, 504]))).toEqual([]);
    expect(pathsOf(at(path, [502, '503', 501, null, 429, 502]))).toEqual(
      [1, 2, 3, 4, 5].map((index) => `${path}[${index}]`),
    );
  });
});

describe('accounts and providers', () => {
  it.each(['', 'a b', 'ü', 'a/b', 'x'.repeat(64), 'a\nb'])('refuse the name %j', (name) => {
    expect(pathsOf({ accounts: { [name]: { apiKeyEnv: 'K' } } })).toEqual(['accounts']);
    expect(pathsOf({ providers: { sonilo: {}, [name]: { baseUrl: 'https://x.example' } } })).toEqual([
      'providers',
    ]);
  });

  it('take 63 letters, digits, dots, dashes and underscores', () => {
    const name = `A.b-c_9${'x'.repeat(56)}`;
    expect(Object.keys(resolveConfig({ accounts: { [name]: { apiKeyEnv: 'K' } } }).accounts)).toEqual([name]);
  });

  it('must fit each other', () => {
    const [problem] = problemsOf({
      providers: { sonilo: {}, staging: { baseUrl: 'https://staging.example' } },
      accounts: { default: { provider: 'stagin', apiKeyEnv: 'K' } },
    });
    expect(problem).toEqual({
      path: 'accounts.default.provider',
      message: 'expected one of providers (sonilo, staging), got "stagin". Did you mean "staging"?',
    });
  });

  it('never fall back to the real provider when its name was mistyped', () => {
    expect(pathsOf({ providers: { sonlio: { baseUrl: 'http://127.0.0.1:4010' } } })).toEqual([
      'accounts.default.provider',
    ]);
  });

  it('share no key by oversight: only the default account has a default', () => {
    expect(pathsOf({ accounts: { default: {}, second: {} } })).toEqual(['accounts.second.apiKeyEnv']);
    expect(
      pathsOf({
        providers: { mine: { baseUrl: 'https://x.example' } },
        accounts: { default: { provider: 'mine' } },
      }),
    ).toEqual(['accounts.default.apiKeyEnv']);
  });

  it('share no key of one provider: its limits would be counted once for each of them', () => {
    const [problem, ...more] = problemsOf({ accounts: { default: {}, b: { apiKeyEnv: 'SONILO_API_KEY' } } });
    expect(more).toEqual([]);
    expect(problem).toEqual({
      path: 'accounts.b.apiKeyEnv',
      message:
        'expected a variable of its own, got SONILO_API_KEY, which accounts.default has: the limits of one key ' +
        'would be counted twice.',
    });
    const providers = { sonilo: {}, mine: { baseUrl: 'https://x.example' } };
    const elsewhere = { provider: 'mine', apiKeyEnv: 'SONILO_API_KEY' };
    expect(pathsOf({ providers, accounts: { default: {}, b: elsewhere } })).toEqual([]);
    expect(pathsOf({ providers, accounts: { default: {}, b: elsewhere, c: elsewhere } })).toEqual([
      'accounts.c.apiKeyEnv',
    ]);
    // Refused already, and no name that two have in common.
    const noName = { apiKeyEnv: 'no name' };
    expect(pathsOf({ accounts: { a: noName, b: noName } })).toEqual([
      'accounts.a.apiKeyEnv',
      'accounts.b.apiKeyEnv',
    ]);
  });

  it('are not empty', () => {
    expect(pathsOf({ accounts: {} })).toEqual(['accounts']);
    expect(pathsOf({ accounts: { default: undefined } })).toEqual(['accounts']);
    expect(pathsOf({ providers: {} })).toEqual(['accounts.default.provider']);
  });
});

describe('baseUrl', () => {
  const baseUrlOf = (baseUrl: unknown, storage = {}) =>
    resolveConfig({ providers: { sonilo: { baseUrl } }, storage }).providers['sonilo']?.baseUrl;

  it.each([
    ['https://api.example', 'https://api.example'],
    ['https://api.example/', 'https://api.example'],
    ['https://api.example/proxy/v2//', 'https://api.example/proxy/v2'],
    ['http://127.0.0.1:4010', 'http://127.0.0.1:4010'],
    ['http://[::1]:4010/', 'http://[::1]:4010'],
    ['http://localhost:4010', 'http://localhost:4010'],
  ])('takes %s', (given, kept) => {
    expect(baseUrlOf(given)).toBe(kept);
  });

  it('takes http: elsewhere only where private hosts are allowed', () => {
    expect(() => baseUrlOf('http://simulator:4010')).toThrow('expected https:');
    expect(baseUrlOf('http://simulator:4010', { allowPrivateHosts: true })).toBe('http://simulator:4010');
  });

  it.each([
    '',
    'api.example',
    '/v1',
    'ftp://api.example',
    'file:///etc',
    'http://127.0.0.1.evil.example',
    `https://user:${CANARY}@api.example`,
    `https://${CANARY}@api.example`,
    `https://api.example/?token=${CANARY}`,
    `https://api.example/#${CANARY}`,
    null,
    3,
    {},
  ])('refuses %o', (value) => {
    expect(new Set(pathsOf(at('providers.sonilo.baseUrl', value)))).toEqual(
      new Set(['providers.sonilo.baseUrl']),
    );
  });

  it('is required of every provider but sonilo', () => {
    expect(pathsOf({ providers: { sonilo: {}, mine: {} } })).toEqual(['providers.mine.baseUrl']);
  });
});

describe('secrets', () => {
  const SECRETS = [
    CANARY,
    CANARY.toLowerCase(),
    'canary-5e1f',
    `postgres://user:${CANARY}@db.example/app`,
    `https://user:${CANARY}@api.example/?key=${CANARY}`,
    `http://api.example/${CANARY}`,
    `sk_${CANARY}`,
    'sk_canary5e1f',
  ];
  const SECRET_SETTINGS = [
    'database.connectionStringEnv',
    'accounts.default.apiKeyEnv',
    'providers.sonilo.baseUrl',
    'accounts.default.apiKey',
    'database.connectionString',
    'database.url',
    'providers.sonilo.apiKey',
  ];

  it.each(SECRET_SETTINGS)('never come back from %s', (path) => {
    for (const secret of SECRETS) {
      const refusal = refusalOf(at(path, secret));
      expect(refusal?.problems.length).toBeGreaterThan(0);
      expect(`${refusal?.stack} ${refusal?.hint} ${JSON.stringify(refusal?.problems)}`).not.toMatch(
        /canary/i,
      );
    }
  });

  it('never come back from any number, nor as a key', () => {
    const long = `${CANARY} and more`;
    for (const { path } of [...NUMERIC_SETTINGS, ...FRACTIONS]) {
      expect(refusalOf(at(path, long))?.message).not.toContain(CANARY);
    }
    const asKey = `https://user:${CANARY}@api.example`;
    for (const input of [{ [asKey]: 1 }, { accounts: { [asKey]: {} } }, { worker: { [asKey]: 1 } }]) {
      const refusal = refusalOf(input);
      expect(refusal?.problems).toHaveLength(1);
      expect(`${refusal?.message} ${JSON.stringify(refusal?.problems)}`).not.toContain(CANARY);
    }
  });

  it('are named by variables in capitals', () => {
    expect(pathsOf(at('database.connectionStringEnv', 'PG_URL_2'))).toEqual([]);
    for (const name of ['', ' ', 'pg_url', '2PG', 'PG-URL', 'PG URL', '$PG_URL', null, 3, []]) {
      expect(pathsOf(at('database.connectionStringEnv', name))).toEqual(['database.connectionStringEnv']);
    }
  });
});

describe('defineConfig', () => {
  it('returns what it is given, and types it', () => {
    const config: OnetakeConfig = { worker: { concurrency: 3 } };
    expect(defineConfig(config)).toBe(config);
    expectTypeOf(defineConfig).parameter(0).toEqualTypeOf<OnetakeConfig>();
    // @ts-expect-error an unknown operation is a type error before it is a refusal
    expect(() => resolveConfig(defineConfig({ operations: { 'text-to-musik': {} } }))).toThrow(
      'Did you mean',
    );
  });
});

describe('storage.s3', () => {
  const s3Of = (s3: object, more: object = {}) =>
    resolveConfig({ storage: { s3, ...more } as never }).storage.s3;

  it('fills in what is left out, and ends the prefix with a slash', () => {
    expect(s3Of({ bucket: 'songs' })).toEqual({
      bucket: 'songs',
      prefix: '',
      endpoint: null,
      region: null,
      forcePathStyle: false,
    });
    expect(s3Of({ bucket: 'songs', prefix: 'a/b', endpoint: 'https://r2.example.com/' })).toMatchObject({
      prefix: 'a/b/',
      endpoint: 'https://r2.example.com',
    });
    expect(
      s3Of({ bucket: 'songs', endpoint: 'http://127.0.0.1:9000' }, { allowPrivateHosts: true }),
    ).toMatchObject({
      endpoint: 'http://127.0.0.1:9000',
    });
  });

  it.each<[object, string]>([
    [{}, 'storage.s3.bucket'],
    [{ bucket: 'No' }, 'storage.s3.bucket'],
    [{ bucket: 'songs', prefix: '/a' }, 'storage.s3.prefix'],
    [{ bucket: 'songs', endpoint: 'http://127.0.0.1:9000' }, 'storage.s3.endpoint'],
    [{ bucket: 'songs', endpoint: 'https://key:secret@r2.example.com' }, 'storage.s3.endpoint'],
    [{ bucket: 'songs', region: 'EU' }, 'storage.s3.region'],
    [{ bucket: 'songs', secretAccessKey: 'x' }, 'storage.s3.secretAccessKey'],
  ])('refuses %j by its path, and repeats no secret', (s3, path) => {
    expect(() => s3Of(s3)).toThrow(`${path}: `);
    expect(() => s3Of(s3)).not.toThrow('secret@');
  });

  it('is one place for files, beside which there is no other', () => {
    expect(() => s3Of({ bucket: 'songs' }, { directory: './generations' })).toThrow('storage.s3: ');
  });
});
