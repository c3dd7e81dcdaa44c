import { describe, expect, it } from 'vitest';
import { isPublicAddress } from '../../src/core/public-address.ts';
import { ANY_HOST, createAddressRules, PUBLIC_HOSTS_ONLY } from '../../src/storage/address-rules.ts';

describe('the rules for public hosts', () => {
  it.each([
    ['http://files.example.com/a', 'insecure_url'],
    ['file:///etc/passwd', 'insecure_url'],
    ['ftp://files.example.com/a', 'insecure_url'],
    ['data:audio/wav;base64,UklGRg==', 'insecure_url'],
    ['https://user:pass@files.example.com/a', 'insecure_url'],
    ['https://127.0.0.1/a', 'private_host'],
    ['https://127.1/a', 'private_host'],
    ['https://2130706433/a', 'private_host'],
    ['https://0x7f.0.0.1/a', 'private_host'],
    ['https://0177.0.0.1/a', 'private_host'],
    ['https://169.254.169.254/latest/meta-data', 'private_host'],
    ['https://[::1]/a', 'private_host'],
    ['https://[::ffff:10.0.0.1]/a', 'private_host'],
    ['https://localhost/a', 'private_host'],
    ['https://localhost./a', 'private_host'],
    ['https://files.localhost/a', 'private_host'],
    ['https://metadata.google.internal/a', 'private_host'],
    ['https://METADATA.google.INTERNAL./a', 'private_host'],
    ['https://printer.local/a', 'private_host'],
    ['https://database/a', 'private_host'],
    ['https://files.example.com/a', null],
    ['https://files.example.com:8443/a', null],
    ['https://8.8.8.8/a', null],
    ['https://[2606:4700::1]/a', null],
  ])('judge %s as %s', (url, verdict) => {
    expect(PUBLIC_HOSTS_ONLY.refuse(new URL(url))).toBe(verdict);
  });

  it('refuse a name of which one address of several is private', async () => {
    const rules = createAddressRules({
      allowHttp: false,
      admitsAddress: isPublicAddress,
      resolve: (_name, _options, callback) =>
        callback(null, [
          { address: '8.8.8.8', family: 4 },
          { address: '10.0.0.1', family: 4 },
        ]),
    });
    const error = await new Promise((settle) => rules.lookup('files.example.com', { all: true }, settle));
    expect(error).toMatchObject({ code: 'private_host' });
    expect(String(error)).not.toContain('example');
  });

  it('hand on every address, or the first, as the socket asks', async () => {
    const addresses = [
      { address: '8.8.8.8', family: 4 },
      { address: '2606:4700::1', family: 6 },
    ];
    const rules = createAddressRules({
      allowHttp: false,
      admitsAddress: isPublicAddress,
      resolve: (_name, _options, callback) => callback(null, addresses),
    });
    const look = (all: boolean) =>
      new Promise((settle) => rules.lookup('files.example.com', { all }, (...answer) => settle(answer)));
    expect(await look(true)).toEqual([null, addresses]);
    expect(await look(false)).toEqual([null, '8.8.8.8', 4]);
  });

  it('refuse localhost by the address that the system resolves it to', async () => {
    const error = await new Promise((settle) => PUBLIC_HOSTS_ONLY.lookup('localhost', { all: true }, settle));
    expect(error).toMatchObject({ code: 'private_host' });
  });
});

describe('the rules for any host', () => {
  it.each([
    ['http://127.0.0.1:8080/a', null],
    ['https://localhost/a', null],
    ['http://[::1]/a', null],
    ['file:///etc/passwd', 'insecure_url'],
    ['http://user:pass@127.0.0.1/a', 'insecure_url'],
  ])('judge %s as %s', (url, verdict) => {
    expect(ANY_HOST.refuse(new URL(url))).toBe(verdict);
  });
});
