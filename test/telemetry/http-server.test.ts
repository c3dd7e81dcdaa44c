import { once } from 'node:events';
import { connect } from 'node:net';
import { expect, onTestFinished, test } from 'vitest';
import { createHttpServer, type Routes } from '../../src/telemetry/http-server.ts';

const ROUTES: Routes = {
  '/fine': async () => ({ status: 200, contentType: 'text/plain', body: 'fine' }),
  '/broken': () => Promise.reject(new Error('canary')),
};

async function started(port = 0) {
  const server = createHttpServer('127.0.0.1', port, ROUTES);
  onTestFinished(() => server.stop());
  return { server, port: await server.start() };
}

async function ask(port: number, path: string, method = 'GET') {
  const response = await fetch(`http://127.0.0.1:${port}${path}`, { method });
  return `${response.status} ${(await response.text()).trim()}`;
}

test('answers its paths, with or without a query, and nothing else', async () => {
  const { port } = await started();
  expect(await ask(port, '/fine')).toBe('200 fine');
  expect(await ask(port, '/fine?x=1')).toBe('200 fine');
  expect(await ask(port, '/fine', 'HEAD')).toBe('200 ');
  expect(await ask(port, '/fine', 'POST')).toBe('405 only GET');
  expect(await ask(port, '/other')).toBe('404 not found: /fine /broken');
  expect(await ask(port, '/toString')).toMatch(/^404/);
});

test('says of a path that fails no more than that', async () => {
  const { port } = await started();
  expect(await ask(port, '/broken')).toBe('500 failed');
});

test('refuses a port that is taken, naming the option', async () => {
  const { port } = await started();
  await expect(started(port)).rejects.toMatchObject({
    code: 'invalid_option',
    message: "--http-port: can't listen on it (EADDRINUSE).",
  });
});

test('stops at once, with a connection open that never asked anything', async () => {
  const { server, port } = await started();
  const socket = connect(port, '127.0.0.1');
  socket.on('error', () => {});
  await once(socket, 'connect');
  const closed = once(socket, 'close');
  await server.stop();
  await closed;
  await server.stop();
});
