import { once } from 'node:events';
import { connect } from 'node:net';
import { onTestFinished } from 'vitest';
import {
  createSimulator,
  type Simulator,
  type SimulatorAddress,
} from '../../src/simulator/create-simulator.ts';
import { formDigest } from '../../src/simulator/form.ts';
import type { LedgerForm } from '../../src/simulator/ledger.ts';
import type { SimulatorOptions } from '../../src/simulator/options.ts';

export type Fields = Readonly<Record<string, string>>;

export interface Setup extends SimulatorAddress {
  readonly simulator: Simulator;
  /** A POST as the official clients form it: multipart, with a key. */
  post(fields: Fields, options?: { key?: string; operation?: string }): Promise<Response>;
  get(path: string, key?: string): Promise<Response>;
  /** What the ledger has about one form. */
  entry(fields: Fields): LedgerForm | undefined;
}

export const KEY = 'sk_test';
export const SONG: Fields = { prompt: 'a slow waltz', duration: '10', mode: 'async' };

export async function setUp(options: SimulatorOptions = {}): Promise<Setup> {
  const simulator = createSimulator(options);
  const address = await simulator.start();
  onTestFinished(() => simulator.stop());
  return {
    ...address,
    simulator,
    post: (fields, { key = KEY, operation = 'text-to-music' } = {}) => {
      const body = new FormData();
      for (const [name, value] of Object.entries(fields)) body.set(name, value);
      const headers = { authorization: `Bearer ${key}`, 'x-sonilo-client': 'sdk-js' };
      return fetch(`${address.url}/v1/${operation}`, { method: 'POST', headers, body, redirect: 'manual' });
    },
    get: (path, key = KEY) => fetch(address.url + path, { headers: { authorization: `Bearer ${key}` } }),
    entry: (fields) => {
      const form = formDigest(Object.entries(fields));
      return simulator.ledger().forms.find((entry) => entry.form === form);
    },
  };
}

/** A clock that stands until it is moved. */
export function stoppedClock(): { now(): number; advance(ms: number): void } {
  let now = Date.UTC(2026, 10, 1);
  return {
    now: () => now,
    advance: (ms) => {
      now += ms;
    },
  };
}

/** The JSON of an answer, loosely typed: tests say what they expect of it. */
export async function bodyOf(response: Response | Promise<Response>): Promise<Record<string, never>> {
  return (await (await response).json()) as Record<string, never>;
}

export interface RawAnswer {
  /** Everything that came before the end. */
  readonly text: string;
  /** `fin` when the server ended in order, else the socket's error code. */
  readonly ending: string;
}

/** A POST on a bare socket, to see what an HTTP client hides: how the connection ended. */
export async function rawPost(port: number, fields: Fields): Promise<RawAnswer> {
  const body = new URLSearchParams(fields).toString();
  const socket = connect(port, '127.0.0.1');
  const head = [
    'POST /v1/text-to-music HTTP/1.1',
    'Host: simulator',
    `Authorization: Bearer ${KEY}`,
    'Content-Type: application/x-www-form-urlencoded',
    `Content-Length: ${Buffer.byteLength(body)}`,
    'Connection: close',
  ];
  socket.write(`${head.join('\r\n')}\r\n\r\n${body}`);
  let text = '';
  let ending = 'fin';
  socket.on('data', (chunk) => {
    text += chunk.toString('latin1');
  });
  socket.on('error', (error: NodeJS.ErrnoException) => {
    ending = error.code ?? 'unknown';
  });
  await once(socket, 'close').catch(() => undefined);
  return { text, ending };
}
