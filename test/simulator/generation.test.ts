import { describe, expect, test } from 'vitest';
import { bodyOf, KEY, SONG, setUp, stoppedClock } from './harness.ts';

describe('a generation', () => {
  test('is accepted with a task id, runs, succeeds and can be downloaded', async () => {
    const clock = stoppedClock();
    const { post, get, filesUrl } = await setUp({ clock, runTimeMs: 2_000 });

    const accepted = await post(SONG);
    expect(accepted.status).toBe(202);
    const { task_id: taskId, ...rest } = await bodyOf(accepted);
    expect(rest).toEqual({ status: 'processing' });

    clock.advance(1_999);
    expect(await bodyOf(get(`/v1/tasks/${taskId}`))).toMatchObject({ task_id: taskId, status: 'processing' });
    clock.advance(1);
    const task = await bodyOf(get(`/v1/tasks/${taskId}`));
    expect(task).toMatchObject({
      type: 'text_to_music',
      status: 'succeeded',
      duration_seconds: 10,
      title: { title: 'A Slow Waltz' },
      audio: [
        { stream_index: 0, content_type: 'audio/wav', file_size: 441_044, sample_rate: 22_050, channels: 1 },
      ],
    });
    const [audio] = task['audio'] as unknown as [{ url: string; file_size: number }];
    expect(new URL(audio.url).origin).toBe(filesUrl);
    const file = await fetch(audio.url);
    expect(file.headers.get('content-length')).toBe('441044');
    expect((await file.arrayBuffer()).byteLength).toBe(audio.file_size);
  });

  test('has one file for each variant, and costs as much more', async () => {
    const { post, get } = await setUp({ runTimeMs: 0 });
    const one = await bodyOf(post(SONG));
    const three = await bodyOf(post({ ...SONG, variants_num: '3' }));
    const single = await bodyOf(get(`/v1/tasks/${one['task_id']}`));
    const task = await bodyOf(get(`/v1/tasks/${three['task_id']}`));
    expect(task).toMatchObject({
      variants_num: 3,
      audio: [{ stream_index: 0 }, { stream_index: 1 }, { stream_index: 2 }],
    });
    expect(task['cost']).toBeCloseTo(Number(single['cost']) * 3);
  });

  test('of an effect has one audio object, of a sound an output URL', async () => {
    const { post, get } = await setUp({ runTimeMs: 0 });
    const effect = await bodyOf(post({ prompt: 'a door' }, { operation: 'text-to-sfx' }));
    expect(await bodyOf(get(`/v1/tasks/${effect['task_id']}`))).toMatchObject({
      type: 'text_to_sfx',
      duration_seconds: 8,
      audio: { content_type: 'audio/wav', file_size: 352_844 },
    });
    const sound = await bodyOf(
      post({ video_url: 'https://example.com/v.mp4' }, { operation: 'video-to-sound' }),
    );
    expect(await bodyOf(get(`/v1/tasks/${sound['task_id']}`))).toMatchObject({
      output_type: 'audio',
      output_url: expect.stringContaining('X-Signature='),
    });
  });

  test('says that it is WAV whatever was ordered', async () => {
    const { post, get } = await setUp({ runTimeMs: 0 });
    const { task_id: taskId } = await bodyOf(post({ ...SONG, output_format: 'mp3' }));
    const task = await bodyOf(get(`/v1/tasks/${taskId}`));
    expect(task['simulator_note']).toMatch(/always WAV.*mp3/);
    const [{ url }] = task['audio'] as unknown as [{ url: string }];
    expect((await fetch(url, { method: 'HEAD' })).headers.get('x-simulator-note')).toMatch(/always WAV/);
  });

  test('takes a video as an uploaded file', async () => {
    const { url, simulator } = await setUp();
    const form = new FormData();
    form.set('video', new File(['not really a video'], 'holiday.mp4', { type: 'video/mp4' }));
    form.set('mode', 'async');
    const headers = { authorization: `Bearer ${KEY}` };
    const answer = await fetch(`${url}/v1/video-to-music`, { method: 'POST', headers, body: form });
    expect(answer.status).toBe(202);
    expect(JSON.stringify(simulator.ledger())).not.toContain('holiday');
  });

  test('belongs to the account of its key', async () => {
    const { post, get } = await setUp({
      keys: { sk_old: { account: 'studio' }, sk_new: { account: 'studio' } },
    });
    const { task_id: taskId } = await bodyOf(post(SONG, { key: 'sk_old' }));
    expect((await get(`/v1/tasks/${taskId}`, 'sk_new')).status).toBe(200);
    const other = await get(`/v1/tasks/${taskId}`, 'sk_other');
    expect(other.status).toBe(404);
    expect(await bodyOf(other)).toEqual({ code: 'not_found', message: 'Task not found' });
  });

  test('can be found by no other id', async () => {
    const { get } = await setUp();
    for (const path of ['/v1/tasks/none', '/v1/tasks/%E0%A4%A', '/v1/tasks/..%2Faccount']) {
      expect((await get(path)).status).toBe(404);
    }
  });
});

describe('a refusal', () => {
  test.each([
    ['a JSON body', { headers: { 'content-type': 'application/json' }, body: JSON.stringify(SONG) }],
    ['an empty form', { body: new URLSearchParams() }],
    ['no body at all', {}],
  ])('answers %s with 422 and the missing field', async (_what, init) => {
    const { url, simulator } = await setUp();
    const headers = { ...('headers' in init ? init.headers : {}), authorization: `Bearer ${KEY}` };
    const answer = await fetch(`${url}/v1/text-to-music`, { ...init, method: 'POST', headers });
    expect(answer.status).toBe(422);
    expect(await bodyOf(answer)).toMatchObject({
      code: 'validation_error',
      errors: [{ loc: ['body', 'prompt'], msg: 'Field required', type: 'missing' }],
    });
    expect(simulator.ledger().totals).toMatchObject({ posts: 1, charges: 0, tasks: 0 });
  });

  test.each([
    ['an empty prompt', { prompt: ' ' }, 'prompt'],
    ['a prompt of 2,001 characters', { prompt: 'x'.repeat(2_001) }, 'prompt'],
    ['a duration that is too short', { duration: '4' }, 'duration'],
    ['a duration that is too long', { duration: '361' }, 'duration'],
    ['a fraction of a second', { duration: '10.5' }, 'duration'],
    ['an unknown mode', { mode: 'later' }, 'mode'],
    ['an unknown format', { output_format: 'ogg' }, 'output_format'],
    ['eleven variants', { variants_num: '11' }, 'variants_num'],
    ['a boolean that is none', { stems: 'yes' }, 'stems'],
    ['segments that are no list', { segments: '{}' }, 'segments'],
    ['segments that begin late', { segments: '[{"start":1,"prompt":"a"}]' }, 'segments'],
    [
      'segments that are too close',
      { segments: '[{"start":0,"prompt":"a"},{"start":4,"prompt":"b"}]' },
      'segments',
    ],
    [
      'a last segment near the end',
      { segments: '[{"start":0,"prompt":"a"},{"start":6,"prompt":"b"}]' },
      'segments',
    ],
    ['an unknown label', { segments: '[{"start":0,"prompt":"a","label":"solo"}]' }, 'segments'],
  ])('answers %s with 422, names the field and charges nothing', async (_what, change, field) => {
    const { post, simulator } = await setUp();
    const answer = await post({ ...SONG, ...change });
    expect(answer.status).toBe(422);
    const { errors } = await bodyOf(answer);
    expect(errors as unknown).toMatchObject([{ loc: ['body', field] }]);
    expect(simulator.ledger().totals).toMatchObject({ posts: 1, charges: 0 });
  });

  test.each([
    ['neither video nor URL', {}],
    ['a URL that is not https', { video_url: 'http://example.com/v.mp4' }],
    ['a URL that is none', { video_url: 'v.mp4' }],
  ])('answers %s with 422', async (_what, fields) => {
    const { post } = await setUp();
    expect((await post({ ...fields, mode: 'async' }, { operation: 'video-to-music' })).status).toBe(422);
  });

  test('answers a video and a URL at once with 422', async () => {
    const { url } = await setUp();
    const body = new FormData();
    body.set('video', new File(['bytes'], 'v.mp4'));
    body.set('video_url', 'https://example.com/v.mp4');
    const headers = { authorization: `Bearer ${KEY}` };
    expect((await fetch(`${url}/v1/video-to-music`, { method: 'POST', headers, body })).status).toBe(422);
  });

  test.each(['output_format', 'variants_num', 'stems'])('answers %s on a stream with 400', async (field) => {
    const { post } = await setUp();
    const value = { output_format: 'wav', variants_num: '2', stems: 'true' }[field] ?? '';
    const answer = await post({ prompt: 'a waltz', [field]: value });
    expect(answer.status).toBe(400);
    expect(await bodyOf(answer)).toEqual({
      code: 'invalid_request',
      message: `${field} requires mode=async`,
    });
  });

  test.each([
    ['a missing key', {}],
    ['another scheme', { authorization: 'Basic c2tfdGVzdA==' }],
    ['a key that is none', { authorization: 'Bearer hello' }],
  ])('answers %s with 401 on every path', async (_what, headers: Record<string, string>) => {
    const { url } = await setUp();
    for (const [method, path] of [
      ['POST', '/v1/text-to-music'],
      ['GET', '/v1/tasks/x'],
      ['GET', '/v1/account/services'],
    ] as const) {
      const answer = await fetch(url + path, { method, headers });
      expect(answer.status).toBe(401);
      expect((await bodyOf(answer))['code']).toBe('auth_invalid');
    }
  });

  test('follows what is said about a key', async () => {
    const keys = {
      sk_poor: 402,
      sk_trial: { status: 402, code: 'trial_exhausted', message: 'No free runs left' },
      sk_barred: 403,
      sk_revoked: 401,
    };
    const { post, get, simulator } = await setUp({ keys });
    expect(await bodyOf(post(SONG, { key: 'sk_poor' }))).toMatchObject({ code: 'insufficient_balance' });
    expect(await bodyOf(post(SONG, { key: 'sk_trial' }))).toMatchObject({ code: 'trial_exhausted' });
    expect((await get('/v1/account/services', 'sk_poor')).status).toBe(200);
    expect((await post(SONG, { key: 'sk_barred' })).status).toBe(403);
    expect((await get('/v1/account/services', 'sk_revoked')).status).toBe(401);

    simulator.setKeys({});
    expect((await post(SONG, { key: 'sk_poor' })).status).toBe(202);
    expect(simulator.ledger().totals).toMatchObject({ charges: 1 });
  });

  test('answers an upload over the limit with 413', async () => {
    const { post, simulator } = await setUp({ maxUploadMb: 1 });
    const answer = await post({ prompt: 'x'.repeat(1_000_001), mode: 'async' });
    expect(answer.status).toBe(413);
    expect((await bodyOf(answer))['code']).toBe('payload_too_large');
    expect(simulator.ledger().totals).toMatchObject({ posts: 1, charges: 0 });
  });

  test('answers other paths and methods without counting a POST', async () => {
    const { get, url, simulator } = await setUp();
    expect((await get('/v1/text-to-music')).status).toBe(405);
    expect((await get('/v1/generations')).status).toBe(404);
    expect((await fetch(`${url}/v1/singing`, { method: 'POST' })).status).toBe(404);
    expect(simulator.ledger().totals.posts).toBe(0);
  });
});

describe('the account', () => {
  test('shows its limits', async () => {
    const { get } = await setUp({ requestsPerMinute: 30, maxConcurrentGenerations: 2 });
    expect(await bodyOf(get('/v1/account/services'))).toMatchObject({
      available_services: expect.arrayContaining(['text_to_music', 'video_to_music']),
      rpm_limit: 30,
      concurrency_limit: 2,
    });
  });

  test('sums what was charged within the days asked for, and only its own', async () => {
    const clock = stoppedClock();
    const { post, get } = await setUp({ clock, runTimeMs: 0 });
    await post(SONG);
    clock.advance(2 * 86_400_000);
    await post({ ...SONG, duration: '20' });
    await post(SONG, { key: 'sk_other' });
    const long = await bodyOf(get('/v1/account/usage'));
    expect(long).toMatchObject({
      summary: { total_requests: 2, total_duration_seconds: 30, total_cost: '0.0600' },
      daily: [{ requests: 1 }, { requests: 1, duration_seconds: 20 }],
    });
    const short = await bodyOf(get('/v1/account/usage?days=1'));
    expect(short).toMatchObject({ summary: { total_requests: 1 } });
    expect((await get('/v1/account/usage?days=0')).status).toBe(422);
  });
});
