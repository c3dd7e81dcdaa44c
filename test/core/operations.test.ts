import { describe, expect, test } from 'vitest';
import { encodeFields } from '../../src/core/encode-fields.ts';
import { OnetakeError } from '../../src/core/errors.ts';
import {
  isOperationName,
  OPERATION_NAMES,
  OPERATIONS,
  type OperationName,
  operationNamed,
  wireFields,
} from '../../src/core/operations.ts';

function refusal(run: () => unknown): OnetakeError {
  try {
    run();
  } catch (error) {
    if (error instanceof OnetakeError) return error;
    throw error;
  }
  throw new Error('was not refused');
}

function refused(fields: unknown, operation = 'text-to-music'): OnetakeError {
  return refusal(() => encodeFields(operation, fields as Record<string, unknown>));
}

describe('operations', () => {
  test('are eleven, each with its path, its result and how long it may run', () => {
    const minutes = (name: OperationName) => OPERATIONS[name].maxRunMs / 60_000;
    expect(OPERATION_NAMES.map((name) => [name, OPERATIONS[name].result, minutes(name)])).toEqual([
      ['text-to-music', 'audio', 10],
      ['video-to-music', 'audio', 10],
      ['text-to-sfx', 'audio', 10],
      ['video-to-sfx', 'audio', 10],
      ['video-to-video-music', 'video', 10],
      ['video-to-video-sfx', 'video', 10],
      ['video-to-sound', 'output', 10],
      ['video-to-video-sound', 'output', 10],
      ['audio-ducking', 'output', 10],
      ['dubbing', 'languages', 120],
      ['video-analysis', 'analysis', 10],
    ]);
    for (const name of OPERATION_NAMES) {
      expect(isOperationName(name)).toBe(true);
      expect(operationNamed(name).path).toBe(`/v1/${name}`);
    }
  });

  // What is paid for, pinned: a default that changes here changes what customers get and what it costs.
  test('ask for one track, in m4a, without stems, by default', () => {
    const music = { mode: 'async', output_format: 'm4a', variants_num: '1', stems: 'false' };
    expect(OPERATIONS['text-to-music']).toMatchObject({
      result: 'audio',
      maxRunMs: 600_000,
      defaults: music,
    });
    expect(OPERATIONS['video-to-music']).toMatchObject({ result: 'audio', maxRunMs: 600_000 });
    expect(OPERATIONS['text-to-music'].defaults).toEqual(music);
    expect(OPERATIONS['video-to-music'].defaults).toEqual({
      ...music,
      preserve_speech: 'false',
      ducking: 'false',
      prompt_influence: '0.5',
    });
  });

  test('ask for eight seconds of sound in aac, by default', () => {
    expect(OPERATIONS['text-to-sfx'].defaults).toEqual({ duration: '8', audio_format: 'aac' });
    expect(OPERATIONS['video-to-sfx'].defaults).toEqual({ audio_format: 'aac' });
  });

  test('buy one, without extras, of everything else by default, and no language that nobody named', () => {
    const mix = { preserve_speech: 'false', ducking: 'false', variants_num: '1' };
    const video = { ...mix, keep_original_sound: 'false' };
    expect(OPERATIONS['video-to-video-music'].defaults).toEqual({ ...video, prompt_influence: '0.5' });
    expect(OPERATIONS['video-to-video-sfx'].defaults).toEqual({});
    expect(OPERATIONS['video-to-sound'].defaults).toEqual({ ...mix, output_format: 'wav' });
    expect(OPERATIONS['video-to-video-sound'].defaults).toEqual(video);
    expect(OPERATIONS['audio-ducking'].defaults).toEqual({});
    expect(OPERATIONS['video-analysis'].defaults).toEqual({ variants_num: '1', mode: 'both' });
    expect(OPERATIONS.dubbing.defaults).toEqual({ ducking: 'false', lipsync: 'true', export_srt: 'false' });
    expect(refused({ video_url: 'x' }, 'dubbing')).toMatchObject({
      problems: [{ code: 'missing', field: 'languages' }],
    });
  });

  test('audio-ducking needs a voice and music, each once', () => {
    expect(refused({ voice_url: 'x' }, 'audio-ducking')).toMatchObject({
      problems: [{ code: 'missing', field: 'music_url' }],
    });
    const both = { voice_url: 'x', voice_file: { file: '/v.wav' }, music_file: { file: '/m.wav' } };
    expect(refused(both, 'audio-ducking')).toMatchObject({
      problems: [{ code: 'conflict', field: 'voice_file' }],
    });
    expect(encodeFields('audio-ducking', { voice_url: 'x', music_file: { file: '/m.wav' } })).toEqual({
      voice_url: 'x',
      music_file: '{"file":"/m.wav"}',
    });
  });

  test.each(['text-to-music', 'text-to-sfx'])('%s needs its prompt and nothing else', (name) => {
    expect(refused({}, name).message).toBe(`fields.prompt: required by ${name}, and missing or blank.`);
    expect(encodeFields(name, { prompt: 'x' })).toEqual({ prompt: 'x' });
  });

  test.each(['video-to-music', 'video-to-sfx'])('%s needs a video or its URL, and not both', (name) => {
    const missing = {
      code: 'invalid_field',
      message: `fields.video_url: one of video, video_url is required by ${name}, and missing or blank.`,
      problems: [{ code: 'missing', field: 'video_url' }],
    };
    expect(refused({}, name)).toMatchObject(missing);
    expect(refused({ video_url: ' ' }, name)).toMatchObject(missing);
    expect(encodeFields(name, { video_url: 'x' })).toEqual({ video_url: 'x' });
    expect(encodeFields(name, { video: { file: '/a.mp4' } })).toEqual({ video: '{"file":"/a.mp4"}' });
    expect(refused({ video_url: 'x', video: { file: '/a.mp4' } }, name)).toMatchObject({
      message: 'fields.video: give one of video, video_url, not both.',
      problems: [{ code: 'conflict', field: 'video' }],
    });
  });

  test.each([
    '/a.mp4',
    null,
    {},
    [],
    { file: '' },
    { file: 7 },
    { path: '/a.mp4' },
    { file: '/a.mp4', name: 'a' },
  ])('refuse a file of another shape, once (%#)', (video) => {
    expect(refused({ video }, 'video-to-music')).toMatchObject({
      message: expect.stringMatching(/^fields\.video: expected \{ file: path \}, got /),
      problems: [{ code: 'wrong_type', field: 'video' }],
    });
  });

  test('refuse a path that can be no path', () => {
    expect(refused({ video: { file: '/a\u0000.mp4' } }, 'video-to-music')).toMatchObject({
      problems: [{ code: 'malformed', field: 'video' }],
    });
  });

  test.each(['text_to_music', 'text-to-musik', 'Text-To-Music'])('suggests a name for %s', (name) => {
    expect(refusal(() => operationNamed(name))).toMatchObject({
      code: 'unknown_operation',
      message: `Unknown operation "${name}". Did you mean "text-to-music"?`,
      hint: expect.stringMatching(/^Known operations: text-to-music, video-to-music, .*, video-analysis\.$/),
    });
  });

  test.each(['', '__proto__', 'constructor', 'toString', 'hasOwnProperty'])(
    'knows no operation "%s"',
    (name) => {
      expect(isOperationName(name)).toBe(false);
      expect(refusal(() => operationNamed(name)).code).toBe('unknown_operation');
    },
  );

  test.each([
    ['nothing', undefined],
    ['null', null],
    ['a number', 7],
    ['an object', {}],
  ])('refuses %s for a name', (_title, name) => {
    expect(refusal(() => operationNamed(name as unknown as string)).code).toBe('unknown_operation');
  });

  test('repeats no name that may be customer data', () => {
    const error = refusal(() => operationNamed('a sad song about my key\nsk-1234'));
    expect(error.message).toBe('Unknown operation.');
  });
});

describe('encodeFields', () => {
  test('encodes each type as a form value', () => {
    const encoded = encodeFields('video-to-music', {
      video_url: 'https://videos.example/a.mp4',
      prompt: 'Ünïcode 🎵\nsecond line',
      prompt_influence: 0.25,
      preserve_speech: true,
      stems: false,
      variants_num: 2,
      output_format: 'wav',
      segments: [{ start: 0, prompt: 'intro' }],
    });
    expect(encoded).toEqual({
      output_format: 'wav',
      preserve_speech: 'true',
      prompt: 'Ünïcode 🎵\nsecond line',
      prompt_influence: '0.25',
      segments: '[{"prompt":"intro","start":0}]',
      stems: 'false',
      variants_num: '2',
      video_url: 'https://videos.example/a.mp4',
    });
  });

  test('writes the same intent the same way, in whatever order it was given', () => {
    const one = encodeFields('text-to-music', {
      prompt: 'p',
      duration: 30,
      segments: [{ start: 0, prompt: 'a', label: 'x' }],
    });
    const two = encodeFields('text-to-music', {
      segments: [{ label: 'x', prompt: 'a', start: 0 }],
      duration: 30.0,
      prompt: 'p',
    });
    expect(JSON.stringify(one)).toBe(JSON.stringify(two));
    expect(Object.keys(one)).toEqual(['duration', 'prompt', 'segments']);
  });

  test('keeps the order of a list, which is part of the intent', () => {
    const segments = [
      { start: 10, prompt: 'b' },
      { start: 0, prompt: 'a' },
    ];
    expect(encodeFields('text-to-music', { prompt: 'p', segments })['segments']).toBe(
      '[{"prompt":"b","start":10},{"prompt":"a","start":0}]',
    );
  });

  test('leaves our defaults out of the intent, and a field that is undefined too', () => {
    const encoded = encodeFields('text-to-music', {
      prompt: 'p',
      output_format: undefined,
      stems: undefined,
    });
    expect(encoded).toEqual({ prompt: 'p' });
  });

  test('keeps a default that the caller spells out', () => {
    expect(encodeFields('text-to-music', { prompt: 'p', output_format: 'm4a' })).toEqual({
      output_format: 'm4a',
      prompt: 'p',
    });
  });

  test.each([
    ['promt', ' Did you mean "prompt"?'],
    ['Duration', ' Did you mean "duration"?'],
    ['video_url', ''],
    ['mode', ''],
    ['x', ''],
    ['constructor', ''],
    ['toString', ''],
  ])('refuses the field %s by name', (name, near) => {
    expect(refused({ prompt: 'p', [name]: 'x' })).toMatchObject({
      code: 'unknown_field',
      message: `Unknown field "${name}" of text-to-music.${near}`,
      hint: expect.stringContaining('Fields of text-to-music: prompt, duration,'),
    });
  });

  test('refuses a __proto__ of its own and is not changed by it', () => {
    const fields = JSON.parse('{"prompt":"p","__proto__":{"stems":true}}') as Record<string, unknown>;
    expect(refused(fields)).toMatchObject({
      code: 'unknown_field',
      message: expect.stringContaining('"__proto__"'),
    });
  });

  test('takes no field from a prototype', () => {
    const fields = Object.create({ prompt: 'inherited' }) as Record<string, unknown>;
    expect(refused(fields).message).toBe('fields.prompt: required by text-to-music, and missing or blank.');
  });

  test.each(['', 'a sad song', `p${'x'.repeat(40)}`, 'line\nbreak', 'nul\u0000'])(
    'repeats no field name that may be customer data (%#)',
    (name) => {
      expect(refused({ prompt: 'p', [name]: 'x' }).message).toMatch(/^Unknown field of text-to-music\./);
    },
  );

  test.each([undefined, '', '  \n'])('refuses a required field that is missing or blank (%#)', (prompt) => {
    expect(refused({ prompt })).toMatchObject({
      code: 'invalid_field',
      message: 'fields.prompt: required by text-to-music, and missing or blank.',
    });
  });

  test.each([
    ['nothing', undefined, 'nothing'],
    ['null', null, 'null'],
    ['a string', 'prompt', 'a string'],
    ['an array', [{ prompt: 'p' }], 'an array'],
    ['a number', 7, 'a number'],
    ['a function', () => ({ prompt: 'p' }), 'a function'],
  ])('refuses %s in place of the fields', (_title, fields, got) => {
    expect(refused(fields)).toMatchObject({
      code: 'invalid_field',
      message: `fields: expected an object, got ${got}.`,
    });
  });

  test.each([
    ['prompt', null, 'a string, got null'],
    ['prompt', 7, 'a string, got a number'],
    ['prompt', ['p'], 'a string, got an array'],
    ['prompt', Object('p'), 'a string, got an object'],
    ['duration', '30', 'a whole number, got a string'],
    ['duration', 1.5, 'a whole number, got a number'],
    ['duration', Number.NaN, 'a whole number, got a number'],
    ['duration', 2 ** 53, 'a whole number, got a number'],
    ['duration', 30n, 'a whole number, got a bigint'],
    ['duration', true, 'a whole number, got a boolean'],
    ['stems', 'true', 'true or false, got a string'],
    ['stems', 0, 'true or false, got a number'],
    ['segments', '[]', 'an array or object, got a string'],
    ['segments', null, 'an array or object, got null'],
    ['segments', Symbol('s'), 'an array or object, got a symbol'],
  ])('refuses a %s of the wrong type (%#)', (name, value, expected) => {
    expect(refused({ prompt: 'p', [name]: value })).toMatchObject({
      code: 'invalid_field',
      message: `fields.${name}: expected ${expected}.`,
    });
  });

  test.each(['0.5', Number.POSITIVE_INFINITY, Number.NaN])(
    'refuses a prompt_influence that is no number (%#)',
    (value) => {
      const error = refused(
        { video_url: 'https://videos.example/a', prompt_influence: value },
        'video-to-music',
      );
      expect(error.message).toMatch(
        /^fields\.prompt_influence: expected a finite number, got a (string|number)\.$/,
      );
    },
  );
});

describe('wireFields', () => {
  test.each(OPERATION_NAMES)('sends every default of %s that the caller left open', (name) => {
    const { defaults, fields } = OPERATIONS[name];
    expect(wireFields(name, { prompt: 'p' })).toEqual({ ...defaults, prompt: 'p' });
    const streamed = OPERATIONS[name].whenStreamed;
    expect(defaults['mode'] === 'async').toBe(streamed !== undefined);
    for (const known of Object.keys(defaults).filter((one) => one !== 'mode'))
      expect(fields).toHaveProperty(known);
  });

  test("puts the caller's word over ours and leaves both untouched", () => {
    const encoded = encodeFields('text-to-music', { prompt: 'p', output_format: 'wav' });
    expect(wireFields('text-to-music', encoded)).toMatchObject({ output_format: 'wav', variants_num: '1' });
    expect(encoded).toEqual({ output_format: 'wav', prompt: 'p' });
    expect(OPERATIONS['text-to-music'].defaults).toMatchObject({ output_format: 'm4a' });
  });
});
