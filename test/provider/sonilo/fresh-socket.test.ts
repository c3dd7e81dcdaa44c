import { expect, test } from 'vitest';
import { type FreshSocket, freshSocket } from '../../../src/provider/sonilo/fresh-socket.ts';
import { rawServer } from './raw-server.ts';

function connect(socket: FreshSocket, port: number): Promise<unknown> {
  const target = { hostname: '127.0.0.1', protocol: 'http:', port: String(port) };
  return new Promise((resolve) => socket.connector(target, (...[error]) => resolve(error)));
}

test('connects once, and refuses a second connection', async () => {
  const server = await rawServer({});
  const socket = freshSocket({ connectMs: 4_000, mayHandOver: () => true });
  expect(await connect(socket, server.port)).toBeNull();
  expect(socket.handedOver).toBe(true);
  expect(await connect(socket, server.port)).toMatchObject({ code: 'SECOND_CONNECTION_REFUSED' });
  expect(await socket.ended(1)).toBe(false);
  socket.end();
  expect(await socket.ended(4_000)).toBe(true);
  await server.stop();
  expect(server.connections).toBe(1);
});

test('ended while it connects, it is never handed over', async () => {
  const server = await rawServer({});
  const socket = freshSocket({ connectMs: 4_000, mayHandOver: () => true });
  const connected = connect(socket, server.port);
  socket.end();
  expect(await connected).toMatchObject({ code: 'ENDED_WHILE_CONNECTING' });
  expect(await socket.ended(4_000)).toBe(true);
  expect(socket.handedOver).toBe(false);
  await server.stop();
});

test('ended before it was asked to connect, it never connects', async () => {
  const server = await rawServer({});
  const socket = freshSocket({ connectMs: 4_000, mayHandOver: () => true });
  expect(await socket.ended(1)).toBe(false);
  socket.end();
  expect(await socket.ended(1)).toBe(true);
  expect(await connect(socket, server.port)).toMatchObject({ code: 'NOT_HANDED_OVER' });
  expect(socket.handedOver).toBe(false);
  await server.stop();
  expect(server.connections).toBe(0);
});
