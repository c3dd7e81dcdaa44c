import { describe, expect, test } from 'vitest';
import { OnetakeError } from '../../../src/core/errors.ts';
import { createSoniloProvider } from '../../../src/provider/sonilo/client.ts';
import { READ, submission } from './fixtures.ts';
import { rawServer, response } from './raw-server.ts';

function refusal(options: unknown): OnetakeError {
  try {
    createSoniloProvider(options as { baseUrl: string });
  } catch (error) {
    if (error instanceof OnetakeError) return error;
    throw error;
  }
  throw new Error('was accepted');
}

describe('baseUrl', () => {
  test.each([
    'https://api.sonilo.com',
    'https://api.sonilo.com/',
    'https://gateway.example.com:8443/sonilo/',
    'http://127.0.0.1:4010',
    'http://[::1]:4010',
    'http://localhost:4010',
  ])('%s is taken', async (baseUrl) => {
    const provider = createSoniloProvider({ baseUrl });
    expect(provider.name).toBe('sonilo');
    await provider.close();
  });

  test.each<[unknown]>([
    [undefined],
    [null],
    [42],
    [''],
    ['api.sonilo.com'],
    ['ftp://api.sonilo.com'],
    ['https://user:hunter2@api.sonilo.com'],
    ['https://hunter2@api.sonilo.com'],
    ['https://api.sonilo.com?key=hunter2'],
    ['https://api.sonilo.com/?'],
    ['https://api.sonilo.com/#hunter2'],
    ['http://api.sonilo.com/hunter2'],
    ['http://127.0.0.1.hunter2.example.com'],
  ])('%s is refused without being repeated', (baseUrl) => {
    const error = refusal({ baseUrl });
    expect(error.code).toBe('invalid_option');
    expect(error.message).toMatch(/^baseUrl: /);
    expect(error.hint).toBeDefined();
    expect(JSON.stringify([error.message, error.hint, error.stack])).not.toContain('hunter2');
  });

  test('keeps the path of a gateway', async () => {
    const server = await rawServer({ onRequest: (socket) => socket.write(response(404)) });
    const provider = createSoniloProvider({ baseUrl: `http://127.0.0.1:${server.port}/sonilo/` });
    await provider.submit(submission());
    await provider.readTask({ ...READ, apiKey: 'sk_x' });
    await provider.close();
    await server.stop();
    expect(server.requests.map(({ line }) => line)).toEqual([
      'POST /sonilo/v1/text-to-music',
      'GET /sonilo/v1/tasks/task-1',
    ]);
  });

  test('plain http beyond loopback takes a permission of its own', async () => {
    const provider = createSoniloProvider({ baseUrl: 'http://simulator:4010', allowPlainHttp: true });
    await provider.close();
    expect(refusal({ baseUrl: 'http://simulator:4010', allowPlainHttp: 'yes' }).code).toBe('invalid_option');
  });
});

test('an unknown option is refused with a suggestion', () => {
  const error = refusal({ baseURL: 'https://api.sonilo.com' });
  expect(error).toMatchObject({ code: 'invalid_option', message: expect.stringContaining('"baseUrl"') });
});

test('a closed provider submits nothing', async () => {
  const server = await rawServer({});
  const provider = createSoniloProvider({ baseUrl: `http://127.0.0.1:${server.port}` });
  await provider.close();
  expect(await provider.submit(submission())).toMatchObject({
    certainty: 'unsent',
    reason: 'unsent_own_doing',
    evidence: { errorCode: 'provider_closed', closed: true },
  });
  await server.stop();
  expect(server.connections).toBe(0);
});
