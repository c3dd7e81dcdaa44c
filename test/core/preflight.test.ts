import { describe, expect, test } from 'vitest';
import { limitsWith } from '../../src/core/field-limits.ts';
import { FieldsError } from '../../src/core/field-problems.ts';
import { checkEncoded, checkFields, PREFLIGHT_RULES } from '../../src/core/preflight.ts';

type Fields = Readonly<Record<string, unknown>>;

/** `code field` of each problem. */
function told(operation: string, fields: Fields, rules = PREFLIGHT_RULES): string[] {
  return checkFields(operation, fields, rules).problems.map(({ code, field }) => `${code} ${field}`);
}

const music = (fields: Fields) => told('text-to-music', { prompt: 'p', ...fields });
const effects = (segments: unknown) =>
  told('video-to-sfx', { video_url: 'https://videos.example/a.mp4', segments });

describe('checkFields', () => {
  test('tells every problem at once, by its field, and no value', () => {
    const { problems, namesAndTypes } = checkFields('text-to-music', {
      prompt: 'secret '.repeat(300),
      duration: 4321,
      output_format: 'secret',
      stems: 'secret',
      variants: 98_765,
    });
    expect(problems.map(({ code, field }) => `${code} ${field}`).sort()).toEqual([
      'not_allowed output_format',
      'out_of_range duration',
      'too_long prompt',
      'unknown_field variants',
      'wrong_type stems',
    ]);
    expect(namesAndTypes).toBe(false);
    const error = new FieldsError('text-to-music', problems);
    expect(error.code).toBe('invalid_field');
    expect(error.message).toMatch(/^The fields of text-to-music have 5 problems:\n {2}/);
    expect(JSON.stringify([error.message, error.hint, problems])).not.toMatch(/secret|4321|98765/);
  });

  test('names the setting that overrides a limit', () => {
    const [problem] = checkFields('text-to-music', { prompt: 'p', duration: 4 }).problems;
    expect(problem?.message).toBe('fields.duration: expected 5 to 360.');
    expect(problem?.hint).toContain('operations.text-to-music.limits.duration');
    expect(new FieldsError('text-to-music', problem === undefined ? [] : [problem]).hint).toBe(problem?.hint);
  });

  test('tells of a wrong type once, and goes on with the others', () => {
    expect(told('text-to-music', { prompt: 7, duration: '4', segments: [] })).toEqual([
      'wrong_type duration',
      'wrong_type prompt',
      'count segments',
    ]);
  });

  test('finds nothing wrong with fields at their limits', () => {
    const fields = { prompt: '🎵'.repeat(2_000), duration: 360, output_format: 'mp3', variants_num: 10 };
    expect(checkFields('text-to-music', fields)).toEqual({ problems: [], namesAndTypes: true });
    expect(music({ duration: 5 })).toEqual([]);
    expect(told('text-to-sfx', { prompt: 'p', duration: 0.5, audio_format: 'flac' })).toEqual([]);
  });

  test.each<[Fields, string]>([
    [{ prompt: '🎵'.repeat(2_001) }, 'too_long prompt'],
    [{ duration: 361 }, 'out_of_range duration'],
    [{ duration: 4 }, 'out_of_range duration'],
    [{ variants_num: 0 }, 'out_of_range variants_num'],
    [{ variants_num: 11 }, 'out_of_range variants_num'],
    [{ output_format: 'M4A' }, 'not_allowed output_format'],
    [{ output_format: '' }, 'not_allowed output_format'],
    [{ segments: { start: 0, prompt: 'p' } }, 'wrong_type segments'],
  ])('refuses a field just beyond its limit (%#)', (fields, problem) => {
    expect(music(fields)).toEqual([problem]);
  });

  test('takes other limits, and none', () => {
    const settings = { duration: { max: 400 }, prompt: false, output_format: { values: ['opus'] } } as const;
    const rules = {
      ...PREFLIGHT_RULES,
      limits: { ...PREFLIGHT_RULES.limits, 'text-to-music': limitsWith('text-to-music', settings) },
    };
    const fields = { prompt: 'p'.repeat(9_000), duration: 400, output_format: 'opus' };
    expect(told('text-to-music', fields, rules)).toEqual([]);
    expect(told('text-to-music', { ...fields, duration: 4 }, rules)).toEqual(['out_of_range duration']);
  });
});

describe('segments of music', () => {
  test.each<[string, unknown, Fields, readonly string[]]>([
    ['one', [{ start: 0, prompt: 'p' }], {}, []],
    ['thirty', Array.from({ length: 30 }, (_, n) => ({ start: n * 5, prompt: 'p', label: 'verse' })), {}, []],
    ['none', [], {}, ['count segments']],
    ['a million', Array.from({ length: 31 }, () => null), {}, ['count segments']],
    ['what is no object', [null, 'x', [0]], {}, [0, 1, 2].map((n) => `wrong_type segments[${n}]`)],
    ['a late first', [{ start: 1, prompt: 'p' }], {}, ['order segments[0].start']],
    [
      'the wrong order, told once',
      [
        { start: 0, prompt: 'p' },
        { start: 20, prompt: 'p' },
        { start: 10, prompt: 'p' },
      ],
      {},
      ['order segments[2].start'],
    ],
    [
      'too little space',
      [
        { start: 0, prompt: 'p' },
        { start: 4.9, prompt: 'p' },
      ],
      {},
      ['order segments[1].start'],
    ],
    [
      'a start that is no number, told once',
      [{ start: 0, prompt: 'p' }, { prompt: 'p' }, { start: 1, prompt: 'p' }],
      {},
      ['wrong_type segments[1].start'],
    ],
    ['a start that is text', [{ start: '0', prompt: 'p' }], {}, ['wrong_type segments[0].start']],
    ['no prompt', [{ start: 0 }], {}, ['wrong_type segments[0].prompt']],
    ['an empty prompt', [{ start: 0, prompt: '' }], {}, ['missing segments[0].prompt']],
    ['a long prompt', [{ start: 0, prompt: 'p'.repeat(201) }], {}, ['too_long segments[0].prompt']],
    ['an unknown label', [{ start: 0, prompt: 'p', label: 'Intro' }], {}, ['not_allowed segments[0].label']],
    [
      'a last one near the end',
      [
        { start: 0, prompt: 'p' },
        { start: 26, prompt: 'p' },
      ],
      { duration: 30 },
      ['order segments[1].start'],
    ],
    [
      'a last one just far enough from the end',
      [
        { start: 0, prompt: 'p' },
        { start: 25, prompt: 'p' },
      ],
      { duration: 30 },
      [],
    ],
    [
      'no time at all, with a duration',
      [{ prompt: 'p' }],
      { duration: 30 },
      ['wrong_type segments[0].start'],
    ],
  ])('%s', (_title, segments, fields, problems) => {
    expect(music({ segments, ...fields })).toEqual(problems);
  });
});

describe('segments of effects', () => {
  test.each<[string, unknown, readonly string[]]>([
    [
      'without gaps',
      [
        { start: 0, end: 1.5, prompt: 'p' },
        { start: 1.5, end: 2, prompt: 'p', label: 'anything' },
      ],
      [],
    ],
    [
      'with a gap',
      [
        { start: 0, end: 1, prompt: 'p' },
        { start: 2, end: 3, prompt: 'p' },
      ],
      ['order segments[1].start'],
    ],
    ['a late first', [{ start: 1, end: 2, prompt: 'p' }], ['order segments[0].start']],
    ['an end before its start', [{ start: 0, end: 0, prompt: 'p' }], ['order segments[0].end']],
    ['no start', [{ end: 1, prompt: 'p' }], ['wrong_type segments[0].start']],
    [
      'no end, told once',
      [
        { start: 0, prompt: 'p' },
        { start: 3, end: 4, prompt: 'p' },
      ],
      ['wrong_type segments[0].end'],
    ],
    ['long JSON', [{ start: 0, end: 1, prompt: 'p', more: 'x'.repeat(40_000) }], ['too_long segments']],
  ])('%s', (_title, segments, problems) => {
    expect(effects(segments)).toEqual(problems);
  });
});

describe('source URLs', () => {
  const of = (video_url: string, allowPrivateHosts = false) =>
    told('video-to-music', { video_url }, { ...PREFLIGHT_RULES, allowPrivateHosts }).map(
      (problem) => problem.split(' ')[0],
    );

  test.each([
    'https://videos.example/a.mp4',
    'https://videos.example:8443/a%20b.mp4?sig=a/b+c=#t=1',
    'HTTPS://Videos.Example/a',
    'https://8.8.8.8/a',
    'https://[2606:4700::6810:1]/a',
    'https://bücher.example/a',
    'https://xn--bcher-kva.example/a',
    'https://videos.example./a',
    'https://videos.example?sig=1',
    'https://videos.example/a?by=me@home#@',
  ])('takes %s', (url) => {
    expect(of(url)).toEqual([]);
  });

  test.each([
    ['http://videos.example/a.mp4', 'insecure_url'],
    ['file:///etc/passwd', 'insecure_url'],
    ['data:video/mp4;base64,AAAA', 'insecure_url'],
    ['javascript:alert(1)', 'insecure_url'],
    ['https://user@videos.example/a', 'url_credentials'],
    ['https://:secret@videos.example/a', 'url_credentials'],
    ['http://user:secret@videos.example/a', 'url_credentials'],
    ['https://@videos.example/a', 'url_credentials'],
    ['https://:@videos.example/a', 'url_credentials'],
    // One parser's host is another's user name.
    ['https://videos.example?@127.0.0.1/a', 'url_credentials'],
    ['https://videos.example#@127.0.0.1/a', 'url_credentials'],
    ['https://127.0.0.1/a', 'private_host'],
    ['https://127.0.0.1./a', 'private_host'],
    ['https://%31%32%37.0.0.1/a', 'private_host'],
    ['https://127。0。0。1/a', 'private_host'],
    ['https://[::ffff:7f00:1]/a', 'private_host'],
    ['https://localhost.localdomain/a', 'private_host'],
    ['https://kubernetes.default.svc/a', 'private_host'],
    ['https://wiki.corp/a', 'private_host'],
    ['https://staging.test/a', 'private_host'],
    // Public to one parser; 10.8.8.8, or no address, to another.
    ['https://010.8.8.8/a', 'invalid_url'],
    ['https://0x08080808/a', 'invalid_url'],
    ['https://134744072/a', 'invalid_url'],
    ['https://8.8.2056/a', 'invalid_url'],
    ['https://videos%2eexample/a', 'invalid_url'],
    ['https://vid\u00adeos.example/a', 'invalid_url'],
    ['https://videos..example/a', 'invalid_url'],
    ['https://.videos.example/a', 'invalid_url'],
    ['https://2130706433/a', 'private_host'],
    ['https://0x7f.1/a', 'private_host'],
    ['https://10.1.2.3:8443/a', 'private_host'],
    ['https://169.254.169.254/latest/meta-data', 'private_host'],
    ['https://[::1]/a', 'private_host'],
    ['https://[fd00::1]/a', 'private_host'],
    ['https://[::ffff:10.0.0.1]/a', 'private_host'],
    ['https://[64:ff9b::7f00:1]/a', 'private_host'],
    ['https://localhost/a', 'private_host'],
    ['https://metadata.google.internal/a', 'private_host'],
    ['https://NAS.local./a', 'private_host'],
    ['https://intranet/a', 'private_host'],
    ['videos.example/a.mp4', 'invalid_url'],
    ['//videos.example/a.mp4', 'invalid_url'],
    ['/home/me/a.mp4', 'invalid_url'],
    [' https://videos.example/a', 'invalid_url'],
    ['https://videos.example/a\n', 'invalid_url'],
    ['https://videos.example/a b', 'invalid_url'],
    ['https:\\\\videos.example\\a', 'invalid_url'],
    ['https:videos.example/a', 'invalid_url'],
    ['https:///videos.example/a', 'invalid_url'],
    ['https://videos.example:99999/a', 'invalid_url'],
    ['https://[::1/a', 'invalid_url'],
    ['https://%00/a', 'invalid_url'],
  ])('refuses %j as %s', (url, code) => {
    expect(of(url)).toEqual([code]);
  });

  test('may be plain and private where that is allowed, and never with credentials', () => {
    expect(of('http://127.0.0.1:8080/a.mp4', true)).toEqual([]);
    expect(of('http://user@127.0.0.1:8080/a.mp4', true)).toEqual(['url_credentials']);
    expect(of('ftp://127.0.0.1/a.mp4', true)).toEqual(['insecure_url']);
  });

  test('are missing when they are blank', () => {
    expect(of(' ')).toEqual(['missing']);
  });
});

test('a local file is not looked at here', () => {
  expect(told('video-to-music', { video: { file: '/nowhere.mp4' } })).toEqual([]);
});

describe('what a stream can carry', () => {
  const streamed = (encoded: Readonly<Record<string, string>>) =>
    checkEncoded('video-to-music', { mode: 'stream', ...encoded }, PREFLIGHT_RULES).map(
      ({ code, field }) => `${code} ${field}`,
    );

  test('is a single track in m4a', () => {
    expect(streamed({ prompt_influence: '0.7' })).toEqual([]);
    expect(
      streamed({
        stems: 'true',
        variants_num: '2',
        output_format: 'wav',
        ducking: 'true',
        preserve_speech: 'true',
      }),
    ).toEqual([
      'needs_async output_format',
      'needs_async variants_num',
      'needs_async stems',
      'needs_async preserve_speech',
      'needs_async ducking',
    ]);
  });

  test('is asked of the fields of a request that wants one', () => {
    const fields = { prompt: 'rain', stems: true };
    const codes = (mode: 'async' | 'stream') =>
      checkFields('text-to-music', fields, PREFLIGHT_RULES, mode).problems.map(({ code }) => code);
    expect([codes('async'), codes('stream')]).toEqual([[], ['needs_async']]);
  });

  test('is not asked of an operation without streams, or of a task', () => {
    expect(checkEncoded('text-to-sfx', { mode: 'stream', duration: '9' }, PREFLIGHT_RULES)).toEqual([]);
    expect(checkEncoded('text-to-music', { stems: 'true' }, PREFLIGHT_RULES)).toEqual([]);
  });
});

describe('the error', () => {
  test('is unknown_field only where nothing else is wrong', () => {
    const { problems } = checkFields('text-to-music', { prompt: 'p', promt: 'p', x: 1 });
    expect(new FieldsError('text-to-music', problems)).toMatchObject({
      code: 'unknown_field',
      problems: [{ field: 'promt' }, { field: 'x' }],
    });
  });

  test('repeats no name of a field that may be customer data', () => {
    const [problem] = checkFields('text-to-music', { prompt: 'p', 'a sad song': 1 }).problems;
    expect(problem).toMatchObject({ code: 'unknown_field', field: '' });
  });

  test('says that the fields are none', () => {
    const { problems } = checkFields('text-to-music', null as unknown as Fields);
    expect(problems).toMatchObject([{ code: 'wrong_type', field: 'fields' }]);
  });
});
