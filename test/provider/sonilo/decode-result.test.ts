import { describe, expect, test } from 'vitest';
import { decodeResult } from '../../../src/provider/sonilo/decode-result.ts';

const url = (name: string) => `https://files.example.com/${name}?sig=x`;

const decode = (body: object, operation = 'text-to-music', fields: Record<string, string> = {}) =>
  decodeResult({ status: 'succeeded', ...body }, { operation, fields });

/** Index, label and the file's own name, which is what tells one from the other. */
const placed = (body: object, operation?: string, fields?: Record<string, string>) =>
  decode(body, operation, fields).files.map(
    ({ index, variant, label, kind, url: at }) =>
      `${index}: ${kind} ${variant}${label === null ? '' : ` ${label}`} ${new URL(at).pathname.slice(1)}`,
  );

describe('a title', () => {
  const audio = { url: url('a') };
  const titled = (title: unknown) => decode({ audio, title }).document;

  test('is kept beside the files, as far as it is text, bounded and storable', () => {
    const whole = { title: 'Harbour', summary: 'Slow brass.', display_tags: ['calm', 'brass'] };
    expect(titled(whole)).toEqual({ title: whole });
    expect(titled('Harbour')).toEqual({ title: { title: 'Harbour' } });
    expect(titled({ title: 'a\u0000b\ud800', summary: 7, display_tags: [1, 'x'], more: 'y' })).toEqual({
      title: { title: 'ab\ufffd', display_tags: ['x'] },
    });
    const long = titled({ title: 'a'.repeat(1_000_000), display_tags: Array(1_000).fill('b'.repeat(9_000)) });
    expect(long).toEqual({
      title: { title: 'a'.repeat(1_000), display_tags: Array(50).fill('b'.repeat(1_000)) },
    });
  });

  test.each([[undefined], [null], [7], [[]], [{}], [{ title: 7 }]])('%j is none', (title) => {
    expect(titled(title)).toBeNull();
  });

  test('without a file is no result', () => {
    expect(decode({ audio: [], title: 'Harbour' })).toMatchObject({ files: [], document: null });
  });
});

describe('audio', () => {
  const media = (audio: unknown) => decode({ audio });

  test('is matched by stream_index, not by position', () => {
    const audio = [
      { stream_index: 1, url: url('b'), content_type: 'audio/mp4', file_size: 11 },
      { stream_index: 0, url: url('a'), content_type: 'audio/wav', file_size: 10 },
    ];
    expect(media(audio)).toEqual({
      kind: 'succeeded',
      files: [
        {
          index: 0,
          kind: 'audio',
          variant: 0,
          label: null,
          url: url('a'),
          contentType: 'audio/wav',
          bytes: 10,
        },
        {
          index: 1,
          kind: 'audio',
          variant: 1,
          label: null,
          url: url('b'),
          contentType: 'audio/mp4',
          bytes: 11,
        },
      ],
      document: null,
      warnings: [],
    });
  });

  test.each([[0], [-1], [1.5], ['10'], [null], [2 ** 60]])('file_size %j is absent', (size) => {
    expect(media({ url: url('a'), file_size: size })).toMatchObject({ files: [{ bytes: null }] });
  });

  test.each([[1], ['a b'], ['audio/mp4; codecs="x"'], [null]])('content_type %j is absent', (type) => {
    expect(media({ url: url('a'), content_type: type })).toMatchObject({ files: [{ contentType: null }] });
  });

  test.each([
    [undefined],
    [null],
    [[]],
    [7],
    ['not a url'],
    [{ url: 42 }],
    [{ url: '' }],
    [{ url: 'not a url' }],
    // Neither a column nor a download takes them.
    [{ url: `${url('a')}\u0000` }],
    [{ url: `${url('a')}\ud800` }],
    [[null, 'x', [], { stream_index: 0 }]],
  ])('%j has no usable file', (audio) => {
    expect(media(audio)).toEqual({ kind: 'succeeded', files: [], document: null, warnings: [] });
  });

  test('without stream_index is kept, with a warning when there are several', () => {
    expect(media([{ url: url('a') }])).toMatchObject({ files: [{ index: 0 }], warnings: [] });
    const several = {
      audio: [{ url: url('a') }, { stream_index: 0, url: url('b') }, { stream_index: 100, url: url('c') }],
    };
    expect(placed(several)).toEqual(['0: audio 0 b', '1: audio 1 a', '2: audio 2 c']);
    expect(decode(several).warnings).toEqual(['missing_stream_index']);
  });

  test('of one index twice is the first of them, with a warning', () => {
    const twice = {
      audio: [
        { stream_index: 0, url: url('a') },
        { stream_index: 0, url: url('b') },
      ],
    };
    expect(placed(twice)).toEqual(['0: audio 0 a']);
    expect(decode(twice).warnings).toEqual(['duplicate_stream_index']);
  });

  test('has its stems beside it by index, however few there are', () => {
    const body = {
      audio: [
        { stream_index: 1, url: url('b') },
        { stream_index: 0, url: url('a') },
      ],
      stems: [
        { stream_index: 1, drums: url('b-drums'), bass: { url: url('b-bass') }, vocals: null, other: '' },
      ],
      stems_error: 'gave up',
    };
    expect(placed(body)).toEqual([
      '0: audio 0 a',
      '1: audio 1 b',
      '101: audio 1 drums b-drums',
      '201: audio 1 bass b-bass',
    ]);
    expect(decode(body).warnings).toEqual(['stems_error']);
    expect(decode({ audio: body.audio, stems: 'none', stems_error: null }).warnings).toEqual([]);
  });

  test('has speech, ducked and mixed versions beside it', () => {
    const body = {
      audio: [{ stream_index: 0, url: url('a') }],
      vocals: { url: url('v') },
      ducked: [{ stream_index: 0, url: url('d') }],
      mux: [{ stream_index: 0, url: url('m') }],
    };
    expect(placed(body, 'video-to-music')).toEqual([
      '0: audio 0 a',
      '500: audio 0 speech v',
      '600: audio 0 ducked d',
      '700: video 0 mux m',
    ]);
  });
});

describe('the other shapes', () => {
  test.each<[string, string, object, string[]]>([
    ['one video', 'video-to-video-sfx', { video: { url: url('a') } }, ['0: video 0 a']],
    ['a video that is its URL', 'video-to-video-sfx', { video: url('a') }, ['0: video 0 a']],
    [
      'several videos, by index',
      'video-to-video-music',
      {
        video: { url: url('a') },
        videos: [
          { variant_index: 1, url: url('b') },
          { variant_index: 0, url: url('a') },
        ],
      },
      ['0: video 0 a', '1: video 1 b'],
    ],
    [
      'a sound, and what it was mixed from',
      'video-to-sound',
      {
        output_url: url('a'),
        output_type: 'audio',
        output_bytes: 7,
        music: { url: url('m') },
        sfx: url('s'),
      },
      ['0: audio 0 a', '800: audio 0 music m', '1000: audio 0 sfx s'],
    ],
    [
      'a video of sound',
      'video-to-video-sound',
      { output_url: url('a'), output_type: 'video' },
      ['0: video 0 a'],
    ],
    [
      'audio in a video',
      'audio-ducking',
      { output_url: url('a'), content_type: 'video/mp4' },
      ['0: video 0 a'],
    ],
    [
      'several outputs, by index',
      'video-to-sound',
      {
        output_url: url('a'),
        outputs: [
          { variant_index: 1, output_url: url('b') },
          { variant_index: 0, url: url('a2') },
        ],
      },
      ['0: audio 0 a2', '1: audio 1 b'],
    ],
    [
      'outputs without a first, which stands above them',
      'video-to-sound',
      { output_url: url('a'), outputs: [{ variant_index: 2, output_url: url('c') }] },
      ['0: audio 0 a', '2: audio 2 c'],
    ],
  ])('%s', (_what, operation, body, files) => {
    expect(placed(body, operation)).toEqual(files);
    expect(decode(body, operation).warnings).toEqual([]);
  });

  test('languages keep the place of their order, whichever came', () => {
    const fields = { languages: '["es","fr","zh_cn"]' };
    const body = {
      outputs: { zh_cn: url('zh'), fr: { url: url('fr') }, de: url('de'), 'no code!': url('x') },
    };
    expect(placed(body, 'dubbing', fields)).toEqual([
      '1: video 0 fr fr',
      '2: video 0 zh_cn zh',
      '3: video 0 de de',
    ]);
    expect(placed(body, 'dubbing', { languages: 'junk' })).toHaveLength(3);
  });

  test.each<[string, object]>([
    ['text-to-sfx', { output_url: url('a') }],
    ['video-to-sound', { audio: [{ stream_index: 0, url: url('a') }] }],
    ['dubbing', { audio: { url: url('a') } }],
    ['an operation of another release', { audio: { url: url('a') } }],
  ])('%s finds what was paid for under another name too', (operation, body) => {
    expect(placed(body, operation)).toEqual(['0: audio 0 a']);
  });
});

describe('an analysis', () => {
  const analysis = (body: object) => decode(body, 'video-analysis');

  test('is a document, and has no file', () => {
    const found = { segments: [{ start: 0, prompt: 'rain' }], variations: [{ prompt: 'calm' }] };
    expect(analysis(found)).toEqual({ kind: 'succeeded', files: [], document: found, warnings: [] });
    expect(analysis({ variations: [] }).document).toEqual({ segments: [], variations: [] });
    expect(analysis({ segments: {}, audio: [] })).toMatchObject({ files: [], document: null });
  });

  test('holds nothing that a database can’t', () => {
    const variations = [{ 'a\u0000': 'b\u0000\ud800', c: [1, null, true] }];
    expect(analysis({ variations }).document).toEqual({
      segments: [],
      variations: [{ a: 'b\ufffd', c: [1, null, true] }],
    });
  });

  test.each<[string, unknown]>([
    ['deep', JSON.parse(`${'['.repeat(5_000)}${']'.repeat(5_000)}`)],
    ['large', ['x'.repeat(1_000_001)]],
  ])('that is too %s is nothing, with a warning', (_what, segments) => {
    expect(analysis({ segments })).toEqual({
      kind: 'succeeded',
      files: [],
      document: null,
      warnings: ['document_unusable'],
    });
  });
});
