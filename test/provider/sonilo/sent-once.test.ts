import { channel } from 'node:diagnostics_channel';
import dns from 'node:dns';
import { once } from 'node:events';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import { join } from 'node:path';
import tls from 'node:tls';
import {
  Agent,
  type Dispatcher,
  getGlobalDispatcher,
  interceptors,
  ProxyAgent,
  RetryAgent,
  setGlobalDispatcher,
} from 'undici';
import { afterAll, beforeAll, describe, expect, onTestFinished, test, vi } from 'vitest';
import type { SubmissionOutcome } from '../../../src/core/provider.ts';
import { createSoniloProvider } from '../../../src/provider/sonilo/client.ts';
import { SEND_HEADERS } from '../../../src/provider/sonilo/wire-oracle.ts';
import { startChild } from '../../support/children.ts';
import { SELF_SIGNED_CERTIFICATE, SELF_SIGNED_KEY } from '../../support/self-signed-certificate.ts';
import { unusedPort } from '../../support/unused-port.ts';
import { SHORT, submission, submitAt, submitTo } from './fixtures.ts';
import { flood, type RawBehaviour, type RawServer, rawServer, response } from './raw-server.ts';
import type { SubmitChildOptions } from './submit-child.ts';

// Deadlines are waited for, on machines on which much else runs.
vi.setConfig({ testTimeout: 30_000 });

const BODY = '{"task_id":"task-1","status":"processing"}';
const ACCEPT: RawBehaviour = { onRequest: (socket) => socket.write(response(202, BODY)) };
const to = (location: string) => [['location', location]] as const;

/** What a provider can do to a POST that it has read. */
const FAULTS: Readonly<Record<string, RawBehaviour['onRequest']>> = {
  'a 202': ACCEPT.onRequest,
  'a reset': (socket) => socket.resetAndDestroy(),
  'a close': (socket) => socket.end(),
  'a 307': (socket) => socket.write(response(307, '', to('/v1/text-to-music'))),
  'a 308': (socket) => socket.write(response(308, '', to('/v1/text-to-music'))),
  'a 302': (socket) => socket.write(response(302, '', to('/v1/elsewhere'))),
  'a 303': (socket) => socket.write(response(303, '', to('/v1/elsewhere'))),
  'a 401 with a challenge': (socket) =>
    socket.write(response(401, '', [['www-authenticate', 'Basic realm="x"']])),
  'a 407': (socket) => socket.write(response(407, '', [['proxy-authenticate', 'Basic realm="x"']])),
  'a 408 that closes': (socket) => socket.end(response(408, '', [['connection', 'close']])),
  'a 421': (socket) => socket.write(response(421)),
  'a 425': (socket) => socket.write(response(425, '', [['retry-after', '0']])),
  'a 429 to retry at once': (socket) => socket.write(response(429, '', [['retry-after', '0']])),
  'a 502': (socket) => socket.write(response(502)),
  'a 503 to retry at once': (socket) => socket.write(response(503, '', [['retry-after', '0']])),
  'a 202 cut short': (socket) => socket.end('HTTP/1.1 202 X\r\ncontent-length: 60\r\n\r\n{"task_id'),
  'a 202 in part': (socket) =>
    socket.end('HTTP/1.1 206 X\r\ncontent-range: bytes 0-4/40\r\ncontent-length: 5\r\n\r\n{"tas'),
  'a garbage status line': (socket) => socket.write('HTTP/1.1 two hundred OK\r\n\r\n'),
  'an offer of HTTP/2': (socket) =>
    socket.write('HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n'),
  'an alternative service': (socket) => socket.write(response(502, '', [['alt-svc', 'h2=":443"; ma=3600']])),
  silence: () => undefined,
  'endless hints': (socket) => flood(socket, 'HTTP/1.1 103 X\r\nlink: </x>\r\n\r\n'.repeat(20)),
};

async function fault(name: string): Promise<{ outcome: SubmissionOutcome; server: RawServer }> {
  const onRequest = FAULTS[name];
  const isSlow = name === 'silence' || name === 'endless hints';
  return submitTo(onRequest === undefined ? {} : { onRequest }, isSlow ? { deadlines: SHORT } : {});
}

describe('whatever an app has installed for all of its process', () => {
  const retrying = { methods: ['POST'], minTimeout: 1, maxTimeout: 1, retryAfter: false } as const;
  const everything = { ...retrying, statusCodes: [401, 408, 421, 425, 429, 500, 502, 503, 504] };
  const INSTALLED: Readonly<Record<string, (proxy: string) => Dispatcher>> = {
    'a RetryAgent': () => new RetryAgent(new Agent(), everything as never),
    'retry, redirect and DNS interceptors': () =>
      new Agent().compose(
        interceptors.retry(everything as never),
        interceptors.redirect({ maxRedirections: 5 }),
        interceptors.dns(),
      ),
    'HTTP/2': () => new Agent({ allowH2: true }),
    'a proxy': (proxy) => new ProxyAgent(proxy),
  };

  test.each(Object.keys(INSTALLED))('%s: every POST arrives once, directly', async (name) => {
    const proxy = await rawServer({});
    const before = getGlobalDispatcher();
    const installed = (INSTALLED[name] as (proxy: string) => Dispatcher)(`http://127.0.0.1:${proxy.port}`);
    setGlobalDispatcher(installed);
    onTestFinished(async () => {
      setGlobalDispatcher(before);
      await installed.destroy();
    });
    const seen = await Promise.all(
      Object.keys(FAULTS).map(async (kind) => {
        const { server } = await fault(kind);
        return [kind, server.connections, server.requests.map(({ line }) => line)];
      }),
    );
    expect(seen).toEqual(Object.keys(FAULTS).map((kind) => [kind, 1, ['POST /v1/text-to-music']]));
    await proxy.stop();
    expect(proxy.connections).toBe(0);
  });

  test('proxies of the environment are not asked, by Node’s own switch neither', async () => {
    const asked: string[] = [];
    const proxy = await rawServer({
      onConnection: (socket) =>
        socket.on('data', (chunk: Buffer) => {
          asked.push(chunk.toString('latin1').split('\r\n')[0] ?? '');
          socket.end(response(502));
        }),
    });
    const server = await rawServer(ACCEPT);
    const address = `http://127.0.0.1:${proxy.port}`;
    const { maySend: _, ...once } = submission();
    const options: SubmitChildOptions = { baseUrl: `http://127.0.0.1:${server.port}`, submission: once };
    const proxies = ['HTTP_PROXY', 'HTTPS_PROXY', 'ALL_PROXY', 'http_proxy', 'https_proxy', 'all_proxy'];
    await using child = startChild({
      file: join(import.meta.dirname, 'submit-child.ts'),
      env: {
        ...Object.fromEntries(proxies.map((variable) => [variable, address])),
        NO_PROXY: undefined,
        no_proxy: undefined,
        NODE_USE_ENV_PROXY: '1',
        ONETAKE_TEST_SUBMIT: JSON.stringify(options),
      },
    });
    const { outcome } = await child.message<{ outcome?: SubmissionOutcome }>(
      (message) => message.outcome !== undefined,
      'its outcome',
    );
    expect(await child.exited).toEqual({ code: 0, signal: null });
    await Promise.all([proxy.stop(), server.stop()]);
    expect(outcome).toMatchObject({ certainty: 'accepted', evidence: { headersSentProof: 'oracle' } });
    expect([server.posts, server.connections]).toEqual([1, 1]);
    // The environment does reach Node's own client, and nothing of ours.
    expect(asked).toHaveLength(1);
    expect(asked[0]).toContain('elsewhere.invalid');
  });
});

describe('a name with two addresses', () => {
  const NAME = 'two-addresses.localhost';

  /** Both on one port; `first` and `second` are told of their connections. */
  async function twoAddresses(first: 'refuses' | RawBehaviour, second: 'refuses' | RawBehaviour) {
    const server = first === 'refuses' ? undefined : await rawServer(first);
    const port = server?.port ?? (await unusedPort());
    let connections = 0;
    const other = createServer((socket: Socket) => {
      connections++;
      socket.on('error', () => undefined);
      if (second !== 'refuses') socket.once('data', () => second.onRequest?.(socket, NO_REQUEST));
    });
    if (second !== 'refuses') {
      other.listen(port, '::1');
      await once(other, 'listening');
    }
    const { lookup } = dns;
    onTestFinished(() => {
      dns.lookup = lookup;
    });
    dns.lookup = ((name: string, options: object, found: (...answer: unknown[]) => void) => {
      if (name !== NAME) return lookup(name, options as dns.LookupAllOptions, found as never);
      found(null, [
        { address: '127.0.0.1', family: 4 },
        { address: '::1', family: 6 },
      ]);
    }) as never;
    const outcome = await submitAt(`http://${NAME}:${port}`);
    await Promise.all([server?.stop(), new Promise((resolve) => other.close(resolve))]);
    return { outcome, posts: server?.posts ?? 0, secondConnections: connections };
  }
  const NO_REQUEST = { line: '', headers: {}, body: '' };

  test.each(['a reset', 'a close', 'a 502', 'a garbage status line'])(
    'is never tried at the second after %s from the first',
    async (kind) => {
      const onRequest = FAULTS[kind] as NonNullable<RawBehaviour['onRequest']>;
      const { outcome, posts, secondConnections } = await twoAddresses({ onRequest }, ACCEPT);
      expect(outcome).toMatchObject({ certainty: 'unknown', evidence: { headersSent: true } });
      expect([posts, secondConnections]).toEqual([1, 0]);
    },
  );

  test('is tried at the second while nothing was sent', async () => {
    const { outcome, secondConnections } = await twoAddresses('refuses', ACCEPT);
    expect(outcome).toMatchObject({ certainty: 'accepted' });
    expect(secondConnections).toBe(1);
  });

  test('refused at both is unsent', async () => {
    const { outcome } = await twoAddresses('refuses', 'refuses');
    expect(outcome).toMatchObject({
      certainty: 'unsent',
      evidence: { headersSent: false, errorCode: 'ECONNREFUSED' },
    });
  });
});

describe('HTTP/2', () => {
  const defaults = tls.getCACertificates('default');
  beforeAll(() => tls.setDefaultCACertificates([...defaults, SELF_SIGNED_CERTIFICATE]));
  afterAll(() => tls.setDefaultCACertificates(defaults));

  /** A server over TLS that would rather speak HTTP/2, or speaks nothing else; counts what it read. */
  async function preferring(ALPNProtocols: string[]) {
    const seen: string[] = [];
    const server = tls.createServer(
      { key: SELF_SIGNED_KEY, cert: SELF_SIGNED_CERTIFICATE, ALPNProtocols },
      (socket) => {
        socket.on('error', () => undefined);
        socket.once('data', (chunk) => {
          seen.push(`${socket.alpnProtocol} ${chunk.toString('latin1').split('\r\n')[0]}`);
          socket.end(response(202, BODY));
        });
      },
    );
    server.on('tlsClientError', () => undefined);
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    const outcome = await submitAt(`https://localhost:${(server.address() as AddressInfo).port}`);
    await new Promise((resolve) => server.close(resolve));
    return { outcome, seen };
  }

  test('is not spoken with a server that prefers it', async () => {
    const { outcome, seen } = await preferring(['h2', 'http/1.1']);
    expect(outcome).toMatchObject({ certainty: 'accepted' });
    expect(seen).toEqual(['http/1.1 POST /v1/text-to-music HTTP/1.1']);
  });

  test('is all that a server speaks: unsent', async () => {
    const { outcome, seen } = await preferring(['h2']);
    expect(outcome).toMatchObject({ certainty: 'unsent', evidence: { headersSentProof: 'oracle' } });
    expect(seen).toEqual([]);
  });
});

test('a provider that is closed meanwhile still sees what leaves', async () => {
  const server = await rawServer({ onRequest: (socket) => socket.resetAndDestroy() });
  const provider = createSoniloProvider({ baseUrl: `http://127.0.0.1:${server.port}` });
  let asked = 0;
  const maySend = () => {
    // Once connected, and before the first byte.
    if (++asked === 2) void provider.close();
    return true;
  };
  expect(await provider.submit(submission({ maySend }))).toMatchObject({
    certainty: 'unknown',
    evidence: { headersSent: true, headersSentProof: 'oracle' },
  });
  expect(channel(SEND_HEADERS).hasSubscribers).toBe(false);
  await server.stop();
  expect(server.posts).toBe(1);
});

test('the body leaves in one piece with its headers, whole, and once', async () => {
  const pieces: Buffer[] = [];
  const prompt = 'ä'.repeat(20_000);
  const { server } = await submitTo(
    {
      onConnection: (socket) => socket.on('data', (chunk: Buffer) => pieces.push(chunk)),
      onRequest: (socket) => socket.write(response(202, BODY)),
    },
    { fields: { ...submission().fields, prompt } },
  );
  const [request] = server.requests;
  expect(new URLSearchParams(request?.body).get('prompt')).toBe(prompt);
  expect(request?.headers).not.toHaveProperty('expect');
  expect(Buffer.concat(pieces).length).toBe(server.bytes);
});
