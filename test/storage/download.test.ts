import { gzipSync } from 'node:zlib';
import { afterEach, describe, expect, it } from 'vitest';
import {
  type AddressRules,
  ANY_HOST,
  createAddressRules,
  type ResolveAll,
} from '../../src/storage/address-rules.ts';
import { createDownloadAgent, openDownload } from '../../src/storage/download.ts';
import { StoreFault } from '../../src/storage/store-result.ts';
import { startFileServer, wav } from './file-server.ts';

const agents: ReturnType<typeof createDownloadAgent>[] = [];
afterEach(async () => {
  for (const agent of agents.splice(0)) await agent.destroy();
});

function download(url: string, rules: AddressRules = ANY_HOST, idleTimeoutMs?: number) {
  const agent = createDownloadAgent(rules);
  agents.push(agent);
  const signal = new AbortController().signal;
  return openDownload({
    url,
    rules,
    agent,
    signal,
    ...(idleTimeoutMs === undefined ? {} : { idleTimeoutMs }),
  });
}

async function bodyOf(opened: Promise<{ body: AsyncIterable<Buffer> }>): Promise<Buffer> {
  const chunks: Buffer[] = [];
  for await (const chunk of (await opened).body) chunks.push(chunk);
  return Buffer.concat(chunks);
}

/** Loopback split in two: 127.0.0.1 plays the public internet, everything else the inside. */
const splitLoopback = (resolve?: ResolveAll) =>
  createAddressRules({
    allowHttp: true,
    admitsAddress: (address) => address === '127.0.0.1',
    ...(resolve === undefined ? {} : { resolve }),
  });

const resolvesTo =
  (...addresses: string[]): ResolveAll =>
  (_name, _options, callback) =>
    callback(
      null,
      addresses.map((address) => ({ address, family: 4 })),
    );

describe('redirects', () => {
  it('are followed three times, each with the same bare headers', async () => {
    const file = wav(500);
    await using server = await startFileServer((request, response) => {
      const hop = Number(request.url?.slice(1));
      if (hop >= 3) response.end(file);
      else response.writeHead(302, { location: `/${hop + 1}` }).end('moved');
    });
    const body = await bodyOf(download(`http://127.0.0.1:${server.port}/0`));
    expect(body.equals(file)).toBe(true);
    expect(server.requests).toHaveLength(4);
    for (const { headers } of server.requests) {
      expect(Object.keys(headers).sort()).toEqual([
        'accept',
        'accept-encoding',
        'connection',
        'host',
        'user-agent',
      ]);
      expect(headers['accept-encoding']).toBe('identity');
    }
  });

  it('end at the fourth', async () => {
    await using server = await startFileServer((_request, response) => {
      response.writeHead(307, { location: '/again' }).end();
    });
    const refusal = { reason: 'http_status', errorCode: 'too_many_redirects', httpStatus: 307 };
    await expect(download(server.url)).rejects.toMatchObject(refusal);
    expect(server.requests).toHaveLength(4);
  });

  it('without a target are an answer like any other', async () => {
    await using server = await startFileServer((_request, response) => response.writeHead(302).end());
    const refusal = { reason: 'http_status', errorCode: 'redirect_without_location', httpStatus: 302 };
    await expect(download(server.url)).rejects.toMatchObject(refusal);
  });

  it('to the inside reach nobody', async () => {
    await using inside = await startFileServer((_request, response) => response.end(wav(100)), '127.0.0.2');
    await using outside = await startFileServer((_request, response) => {
      response.writeHead(302, { location: inside.url }).end();
    });
    await expect(download(outside.url, splitLoopback())).rejects.toMatchObject({ reason: 'private_host' });
    expect(outside.requests).toHaveLength(1);
    expect(inside.connections()).toBe(0);
    expect((await bodyOf(download(inside.url))).byteLength).toBe(100);
  });

  it('to a name that leads inside reach nobody', async () => {
    await using inside = await startFileServer((_request, response) => response.end(wav(100)), '127.0.0.2');
    await using outside = await startFileServer((_request, response) => {
      response.writeHead(302, { location: `http://files.example.com:${inside.port}/` }).end();
    });
    const rules = splitLoopback(resolvesTo('127.0.0.2'));
    await expect(download(outside.url, rules)).rejects.toMatchObject({ reason: 'private_host' });
    expect(inside.connections()).toBe(0);
  });

  it.each(['file:///etc/passwd', 'ftp://files.example.com/a', 'http://user:pass@127.0.0.1/'])(
    'to %s are refused',
    async (location) => {
      await using server = await startFileServer((_request, response) => {
        response.writeHead(301, { location }).end();
      });
      await expect(download(server.url)).rejects.toMatchObject({ reason: 'insecure_url' });
      expect(server.requests).toHaveLength(1);
    },
  );
});

describe('a name', () => {
  it('that changes its address between two connections is judged at each', async () => {
    await using inside = await startFileServer((_request, response) => response.end(wav(100)), '127.0.0.2');
    await using outside = await startFileServer((_request, response) => {
      response.setHeader('connection', 'close').end(wav(100));
    });
    const answers = ['127.0.0.1', '127.0.0.2'];
    const rules = splitLoopback((name, options, callback) =>
      resolvesTo(answers.shift() ?? '127.0.0.2')(name, options, callback),
    );
    const agent = createDownloadAgent(rules);
    agents.push(agent);
    const signal = new AbortController().signal;
    const get = (port: number) =>
      openDownload({ url: `http://files.example.com:${port}/`, rules, agent, signal });
    expect((await bodyOf(get(outside.port))).byteLength).toBe(100);
    await expect(get(inside.port)).rejects.toMatchObject({ reason: 'private_host' });
    expect(inside.connections()).toBe(0);
  });
});

describe('a body', () => {
  it('in gzip that nobody asked for is decoded', async () => {
    const file = wav(5000);
    await using server = await startFileServer((_request, response) => {
      const packed = gzipSync(file);
      response
        .writeHead(200, { 'content-encoding': 'gzip', 'content-length': packed.byteLength })
        .end(packed);
    });
    const opened = await download(server.url);
    expect(opened.contentLength).toBeNull();
    expect((await bodyOf(Promise.resolve(opened))).equals(file)).toBe(true);
  });

  it('in an encoding that nobody knows is refused', async () => {
    await using server = await startFileServer((_request, response) => {
      response.writeHead(200, { 'content-encoding': 'aws-chunked' }).end('x');
    });
    const refusal = { reason: 'transport', errorCode: 'content_encoding', httpStatus: 200 };
    await expect(download(server.url)).rejects.toMatchObject(refusal);
  });

  it('that falls silent ends by the idle timeout', async () => {
    await using server = await startFileServer((_request, response) => {
      response.writeHead(200, { 'content-length': 1000 }).write(wav(100));
    });
    const reading = bodyOf(download(server.url, ANY_HOST, 100));
    await expect(reading).rejects.toMatchObject({ code: 'UND_ERR_BODY_TIMEOUT' });
  });
});

describe('a name server that never answers', () => {
  it('holds neither the download nor the closing of the agent', async () => {
    const deadline = new AbortController();
    const rules = splitLoopback(() => deadline.abort(new StoreFault('transport', 'download_timeout')));
    const agent = createDownloadAgent(rules);
    const opening = openDownload({ url: 'http://files.example.com/', rules, agent, signal: deadline.signal });
    await expect(opening).rejects.toMatchObject({ reason: 'transport', errorCode: 'download_timeout' });
    await agent.close();
  });
});
