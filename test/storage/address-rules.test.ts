import { describe, expect, it } from 'vitest';
import {
  ANY_HOST,
  createAddressRules,
  isPublicAddress,
  PUBLIC_HOSTS_ONLY,
} from '../../src/storage/address-rules.ts';

const NOT_PUBLIC = [
  ...[
    '0.0.0.0',
    '0.1.2.3',
    '10.0.0.1',
    '10.255.255.255',
    '100.64.0.1',
    '100.127.255.255',
    '127.0.0.1',
    '127.9.9.9',
  ],
  ...[
    '169.254.169.254',
    '172.16.0.1',
    '172.31.255.255',
    '192.0.0.8',
    '192.0.2.1',
    '192.168.0.1',
    '198.18.0.1',
  ],
  ...[
    '198.19.255.255',
    '198.51.100.7',
    '203.0.113.7',
    '224.0.0.1',
    '239.255.255.255',
    '240.0.0.1',
    '255.255.255.255',
  ],
  ...[
    '::',
    '::1',
    '::ffff:127.0.0.1',
    '::ffff:8.8.8.8',
    '::ffff:a00:1',
    '::8.8.8.8',
    'fe80::1',
    'fe80::1%lo',
    'febf::1',
  ],
  ...[
    'fec0::1',
    'fc00::1',
    'fd12:3456::1',
    'ff02::1',
    '100::1',
    '2001::1',
    '2001:20::1',
    '2001:db8::1',
    '2002:7f00:1::',
  ],
  ...['64:ff9b::7f00:1', '64:ff9b::10.0.0.1', '64:ff9b::a9fe:a9fe', '64:ff9b:1::1', '3fff::1', '4000::1'],
  ...['2606:4700::1%eth0', 'example.com', ''],
];

const PUBLIC = [
  ...['1.1.1.1', '8.8.8.8', '9.255.255.255', '11.0.0.1', '100.63.255.255', '100.128.0.1', '126.255.255.255'],
  ...['128.0.0.1', '169.253.0.1', '172.15.0.1', '172.32.0.1', '192.167.0.1', '192.169.0.1', '198.17.0.1'],
  ...['198.20.0.1', '223.255.255.255', '2606:4700::6810:1', '2a00:1450:4001::1', '2001:4860:4860::8888'],
  ...['64:ff9b::808:808', '64:ff9b::8.8.8.8'],
];

describe('isPublicAddress', () => {
  it.each(NOT_PUBLIC)('refuses %s', (address) => {
    expect(isPublicAddress(address)).toBe(false);
  });

  it.each(PUBLIC)('admits %s', (address) => {
    expect(isPublicAddress(address)).toBe(true);
  });
});

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
