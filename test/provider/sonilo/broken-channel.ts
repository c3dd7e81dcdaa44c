import { channel } from 'node:diagnostics_channel';
import { onTestFinished } from 'vitest';
import { SEND_HEADERS } from '../../../src/provider/sonilo/wire-oracle.ts';

type Publish = (message: unknown) => void;
type Message = { readonly request: object; readonly headers: string; readonly socket: object };

/** Puts `publish` between undici and every subscriber, until the test ends. */
function interpose(change: (publish: Publish) => Publish): void {
  const sendHeaders = channel(SEND_HEADERS);
  // Of whatever prototype the channel has at that moment: it changes with its subscribers.
  const publish: Publish = (message) => Object.getPrototypeOf(sendHeaders).publish.call(sendHeaders, message);
  Object.defineProperty(sendHeaders, 'publish', { configurable: true, value: change(publish) });
  onTestFinished(() => {
    delete (sendHeaders as { publish?: unknown }).publish;
  });
}

const changed = (change: (message: Message) => unknown) => () =>
  interpose((publish) => (message) => publish(change(message as Message)));

/** Ways in which another release of undici, or of Node, might not be what we know; each until the test ends. */
export const BROKEN_CHANNELS = {
  'publishes nothing': () => interpose(() => () => undefined),
  'has no subscribers, it says': () => {
    const sendHeaders = channel(SEND_HEADERS);
    Object.defineProperty(sendHeaders, 'hasSubscribers', { configurable: true, value: false });
    onTestFinished(() => {
      delete (sendHeaders as { hasSubscribers?: unknown }).hasSubscribers;
    });
  },
  'publishes nothing that is an object': changed(() => 'POST /v1/text-to-music HTTP/1.1'),
  'leaves the request out': changed(({ headers, socket }) => ({ headers, socket })),
  'leaves the socket out': changed(({ request, headers }) => ({ request, headers })),
  'publishes another request': changed((message) => ({
    ...message,
    request: { method: 'POST', body: Buffer.from('a copy') },
    socket: { destroy: () => undefined },
  })),
  'publishes a copy of the body': changed((message) => ({
    ...message,
    request: { method: 'POST', body: Buffer.from('a copy') },
  })),
  'publishes another socket': changed((message) => ({ ...message, socket: { destroy: () => undefined } })),
  'publishes twice': () =>
    interpose((publish) => (message) => {
      publish(message);
      publish(message);
    }),
  'publishes after the byte': () =>
    interpose((publish) => (message) => queueMicrotask(() => publish(message))),
  'publishes long after the byte': () =>
    interpose((publish) => (message) => {
      setTimeout(() => publish(message), 20);
    }),
} as const;
