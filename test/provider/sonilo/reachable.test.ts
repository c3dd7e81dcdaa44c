import { expect, test } from 'vitest';
import { createSoniloProvider } from '../../../src/provider/sonilo/client.ts';
import { unusedPort } from '../../support/unused-port.ts';
import { API_KEY } from './fixtures.ts';
import { flood, type RawBehaviour, type RawServer, rawServer, response } from './raw-server.ts';

async function ask(
  behaviour: RawBehaviour,
  { timeoutMs = 8_000, path = '' } = {},
): Promise<{ reachable: boolean; server: RawServer }> {
  const server = await rawServer(behaviour);
  const scheme = behaviour.tls === true ? 'https://localhost' : 'http://127.0.0.1';
  const reachable = await askAt(`${scheme}:${server.port}${path}`, timeoutMs);
  await server.stop();
  return { reachable, server };
}

async function askAt(baseUrl: string, timeoutMs: number): Promise<boolean> {
  const provider = createSoniloProvider({ baseUrl });
  try {
    return (await provider.isReachable?.(timeoutMs)) ?? false;
  } finally {
    await provider.close();
  }
}

/** For servers that never answer: the deadline is what is waited for. */
const SHORT = { timeoutMs: 200 };

test.each([200, 302, 401, 403, 404, 429, 500, 503])('is reachable at any status: %d', async (status) => {
  const { reachable } = await ask({ onRequest: (socket) => socket.end(response(status)) });
  expect(reachable).toBe(true);
});

test('is asked by one free GET, without a key and without a body', async () => {
  const { server } = await ask({ onRequest: (socket) => socket.end(response(401)) }, { path: '/proxy/v2/' });
  expect(server.requests).toHaveLength(1);
  expect(server.posts).toBe(0);
  const [request] = server.requests;
  expect(request?.line).toBe('GET /proxy/v2/v1/account/services');
  expect(request?.body).toBe('');
  expect(Object.keys(request?.headers ?? {})).not.toContain('authorization');
  expect(JSON.stringify(request)).not.toContain(API_KEY);
});

test('follows no redirect: whoever answers is near enough', async () => {
  const { reachable, server } = await ask({
    onRequest: (socket) => socket.end(response(302, '', [['location', '/elsewhere']])),
  });
  expect(reachable).toBe(true);
  expect(server.requests).toHaveLength(1);
});

test.each<[string, RawBehaviour]>([
  [
    'a body that breaks off',
    { onRequest: (socket) => socket.end('HTTP/1.1 200 X\r\ncontent-length: 9\r\n\r\n{') },
  ],
  [
    'a body without end',
    {
      onRequest: (socket) => {
        socket.write('HTTP/1.1 200 X\r\ncontent-length: 999999999\r\n\r\n');
        flood(socket, Buffer.alloc(65_536, 'x'));
      },
    },
  ],
])('is reachable by its status line, whatever follows: %s', async (_title, behaviour) => {
  expect((await ask(behaviour)).reachable).toBe(true);
});

test('is reachable by a status line whose body never comes, at the latest when the time is over', async () => {
  const { reachable } = await ask(
    { onRequest: (socket) => socket.write('HTTP/1.1 200 X\r\ncontent-length: 9\r\n\r\n') },
    SHORT,
  );
  expect(reachable).toBe(true);
});

test.each<[string, RawBehaviour]>([
  ['accepts and stays silent', {}],
  ['says only that it goes on', { onRequest: (socket) => socket.write('HTTP/1.1 103 X\r\n\r\n') }],
  ['says over and over that it goes on', { onRequest: (socket) => flood(socket, 'HTTP/1.1 103 X\r\n\r\n') }],
  ['begins a status line and never ends it', { onRequest: (socket) => socket.write('HTTP/1.1 2') }],
])('is not reachable after the time that was given, when the server %s', async (_title, behaviour) => {
  expect((await ask(behaviour, SHORT)).reachable).toBe(false);
});

test.each<[string, RawBehaviour]>([
  ['hangs up at once', { onConnection: (socket) => socket.destroy() }],
  ['hangs up at the request', { onRequest: (socket) => socket.destroy() }],
  ['speaks another protocol', { onRequest: (socket) => socket.end('SSH-2.0-x\r\n') }],
  ['shows a certificate that nobody signed', { tls: true }],
])('is not reachable when the server %s', async (_title, behaviour) => {
  expect((await ask(behaviour)).reachable).toBe(false);
});

test('is not reachable where nobody listens', async () => {
  expect(await askAt(`http://127.0.0.1:${await unusedPort()}`, 8_000)).toBe(false);
});

test('is not reachable under a name that nobody has', async () => {
  expect(await askAt('https://nobody.invalid', 8_000)).toBe(false);
});

test('is not reachable once the provider is closed', async () => {
  const server = await rawServer({ onRequest: (socket) => socket.end(response(200)) });
  const provider = createSoniloProvider({ baseUrl: `http://127.0.0.1:${server.port}` });
  await provider.close();
  expect(await provider.isReachable?.(8_000)).toBe(false);
  expect(server.connections).toBe(0);
  await server.stop();
});

test('can be asked again after it was not reachable', async () => {
  let silent = true;
  const server = await rawServer({
    onRequest: (socket) => {
      if (silent) socket.destroy();
      else socket.end(response(401));
    },
  });
  const provider = createSoniloProvider({ baseUrl: `http://127.0.0.1:${server.port}` });
  expect(await provider.isReachable?.(8_000)).toBe(false);
  silent = false;
  expect(await provider.isReachable?.(8_000)).toBe(true);
  await provider.close();
  await server.stop();
});
