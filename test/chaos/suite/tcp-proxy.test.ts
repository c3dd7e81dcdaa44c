import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import { expect, it, onTestFinished } from 'vitest';
import { waitFor } from '../../support/wait-for.ts';
import { TcpProxy } from './tcp-proxy.ts';

/** A server that answers each chunk with `ok`, and a client of it through the proxy. */
async function open() {
  let heard = '';
  const server = createServer((socket) => {
    socket.on('error', () => undefined);
    socket.on('data', (chunk) => {
      heard += chunk.toString();
      socket.write('ok');
    });
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const proxy = await TcpProxy.open(() => (server.address() as AddressInfo).port);
  onTestFinished(async () => {
    await proxy.close();
    server.close();
  });
  return { proxy, heard: () => heard, client: () => client(proxy.port) };
}

function client(port: number) {
  const socket: Socket = connect(port, '127.0.0.1');
  const state = { socket, answers: '', error: '', isClosed: false };
  socket.on('data', (chunk) => {
    state.answers += chunk.toString();
  });
  socket.on('error', (error: NodeJS.ErrnoException) => {
    state.error = error.code ?? '';
  });
  socket.on('close', () => {
    state.isClosed = true;
  });
  onTestFinished(() => void socket.destroy());
  return state;
}

const until = (fact: () => boolean, what: string) => waitFor(fact, { what });

it('passes bytes on in both directions', async () => {
  const world = await open();
  const one = world.client();
  one.socket.write('hello');
  await until(() => one.answers === 'ok', 'the answer');
  expect(world.heard()).toBe('hello');
  expect(world.proxy.upstreamPorts()).toHaveLength(1);
});

it('cuts with a reset, refuses, and passes again', async () => {
  const world = await open();
  const one = world.client();
  one.socket.write('hello');
  await until(() => one.answers !== '', 'the answer');
  world.proxy.refuse();
  await until(() => one.isClosed, 'the reset');
  expect(one.error).toBe('ECONNRESET');
  const refused = world.client();
  await until(() => refused.isClosed, 'the refusal');
  world.proxy.pass();
  const again = world.client();
  again.socket.write('hello');
  await until(() => again.answers !== '', 'the answer');
});

it.each(['deliver', 'lose'] as const)('keeps everything back while it is stalled: then %s', async (then) => {
  const world = await open();
  const one = world.client();
  one.socket.write('first ');
  await until(() => one.answers !== '', 'the answer');
  world.proxy.stall();
  one.socket.write('second');
  const late = world.client();
  late.socket.write('third');
  await until(() => world.proxy.connections === 2, 'both to be there');
  expect(world.heard()).toBe('first ');
  world.proxy.pass(then);
  if (then === 'deliver') {
    await until(() => world.heard().includes('second') && world.heard().includes('third'), 'the bytes');
    return;
  }
  await until(() => one.isClosed && late.isClosed, 'both to be reset');
  expect(world.heard()).toBe('first ');
});

it.each([
  ['before', 'begin;', ''],
  ['forwarded', 'begin;commit', ''],
  ['answered', 'begin;commit', ''],
] as const)('cuts at a statement: %s', async (when, heard, answers) => {
  const world = await open();
  const one = world.client();
  one.socket.write('begin;');
  await until(() => one.answers === 'ok', 'the answer');
  one.answers = '';
  world.proxy.cutAt({ text: 'commit', when });
  one.socket.write('commit');
  await until(() => one.isClosed, 'the cut');
  await until(() => world.heard() === heard, 'what went through');
  expect(one.answers).toBe(answers);
});

it('cuts at the statement that follows another on the same connection', async () => {
  const world = await open();
  const [one, other] = [world.client(), world.client()];
  world.proxy.cutAt({ text: 'insert', next: 'commit', when: 'before' });
  one.socket.write('insert;');
  await until(() => one.answers === 'ok', 'the answer');
  other.socket.write('commit;');
  await until(() => other.answers === 'ok', 'the commit of another');
  one.socket.write('commit');
  await until(() => one.isClosed, 'the cut');
  expect(world.heard()).toBe('insert;commit;');
});
