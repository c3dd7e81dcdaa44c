import { lookup as systemLookup } from 'node:dns';
import { BlockList, isIP, type LookupFunction } from 'node:net';

/** Every address of one name, as the operating system resolves it. */
export type ResolveAll = (
  hostname: string,
  options: { all: true; verbatim: true },
  callback: (error: NodeJS.ErrnoException | null, addresses: { address: string; family: number }[]) => void,
) => void;

/** What a result URL may point at. The URL comes from the provider's answer, so it is untrusted. */
export interface AddressRules {
  /** Asked for the first URL and for every redirect target, before anything is sent. */
  refuse(url: URL): 'insecure_url' | 'private_host' | null;
  /**
   * Given to the socket itself. A check before the connection would resolve the name a second time, and a
   * name server may answer differently then (DNS rebinding): here, what was checked is what is connected to.
   */
  readonly lookup: LookupFunction;
}

/** Says nothing of the host: the message may end up in a log. */
export class PrivateAddressError extends Error {
  readonly code = 'private_host';

  constructor() {
    super('The name resolves to an address that is not public.');
    this.name = 'PrivateAddressError';
  }
}

const NOT_PUBLIC_IPV4 = [
  ['0.0.0.0', 8],
  ['10.0.0.0', 8],
  ['100.64.0.0', 10], // carrier-grade NAT; some clouds keep their metadata here
  ['127.0.0.0', 8],
  ['169.254.0.0', 16], // link-local: cloud metadata
  ['172.16.0.0', 12],
  ['192.0.0.0', 24],
  ['192.0.2.0', 24],
  ['192.88.99.0', 24],
  ['192.168.0.0', 16],
  ['198.18.0.0', 15],
  ['198.51.100.0', 24],
  ['203.0.113.0', 24],
  ['224.0.0.0', 4],
  ['240.0.0.0', 4],
] as const;

// Global unicast is 2000::/3; everything outside it is refused, so loopback, link-local, unique local,
// multicast and IPv4-mapped need no line of their own.
const NOT_PUBLIC_WITHIN_GLOBAL_IPV6 = [
  ['2001::', 23], // Teredo, ORCHID and other protocol assignments: some embed an IPv4 address
  ['2001:db8::', 32],
  ['2002::', 16], // 6to4 embeds an IPv4 address
  ['3fff::', 20],
] as const;

const blockedIpv4 = new BlockList();
for (const [network, prefix] of NOT_PUBLIC_IPV4) blockedIpv4.addSubnet(network, prefix, 'ipv4');
const globalIpv6 = new BlockList();
globalIpv6.addSubnet('2000::', 3, 'ipv6');
const blockedIpv6 = new BlockList();
for (const [network, prefix] of NOT_PUBLIC_WITHIN_GLOBAL_IPV6) blockedIpv6.addSubnet(network, prefix, 'ipv6');

/** False for whatever isn't an address at all, and for one with a zone (`fe80::1%eth0`). */
export function isPublicAddress(address: string): boolean {
  switch (address.includes('%') ? 0 : isIP(address)) {
    case 4:
      return !blockedIpv4.check(address, 'ipv4');
    case 6: {
      const translated = nat64Target(address);
      if (translated !== null) return isPublicAddress(translated);
      return globalIpv6.check(address, 'ipv6') && !blockedIpv6.check(address, 'ipv6');
    }
    default:
      return false;
  }
}

/** On an IPv6-only network every IPv4 host is reached through 64:ff9b::/96: judge the host behind it. */
function nat64Target(address: string): string | null {
  // The URL parser writes any spelling of an IPv6 address in its one canonical form.
  const canonical = URL.parse(`http://[${address}]/`)?.hostname.slice(1, -1) ?? '';
  const [, high, low] = /^64:ff9b::(?:([0-9a-f]{1,4}):)?([0-9a-f]{1,4})$/.exec(canonical) ?? [];
  if (low === undefined) return null;
  const [upper, lower] = [Number.parseInt(high ?? '0', 16), Number.parseInt(low, 16)];
  return [upper >> 8, upper & 0xff, lower >> 8, lower & 0xff].join('.');
}

/** Names that mean "inside" whatever they resolve to. A name without a dot follows the search domains. */
function isInsideName(hostname: string): boolean {
  const name = hostname.replace(/\.$/, '');
  return !name.includes('.') || /\.(localhost|local|internal|intranet|lan|home\.arpa)$/.test(name);
}

export interface AddressRulesOptions {
  readonly allowHttp: boolean;
  /** Asked for literal addresses and for every address a name resolves to. */
  readonly admitsAddress: (address: string) => boolean;
  readonly resolve?: ResolveAll;
}

export function createAddressRules(options: AddressRulesOptions): AddressRules {
  const resolve: ResolveAll = options.resolve ?? systemLookup;
  return {
    refuse(url) {
      if (url.protocol !== 'https:' && !(options.allowHttp && url.protocol === 'http:'))
        return 'insecure_url';
      // Credentials in a URL are one client setting away from becoming an Authorization header.
      if (url.username !== '' || url.password !== '') return 'insecure_url';
      // The URL parser has already turned 0x7f.1, 2130706433 and 127.1 into 127.0.0.1. Sockets ask no lookup
      // for a literal address, so it is judged here.
      const hostname = url.hostname.replace(/^\[|\]$/g, '');
      const refused = isIP(hostname) === 0 ? isInsideName(hostname) : !options.admitsAddress(hostname);
      return refused ? 'private_host' : null;
    },
    lookup(hostname, lookupOptions, callback) {
      resolve(hostname, { all: true, verbatim: true }, (error, addresses) => {
        if (error !== null) return callback(error, []);
        // One bad address refuses the name: which one the socket would have taken is a race.
        if (!addresses.every(({ address }) => options.admitsAddress(address))) {
          return callback(new PrivateAddressError(), []);
        }
        if (lookupOptions.all === true) return callback(null, addresses);
        const first = addresses[0];
        if (first === undefined)
          return callback(Object.assign(new Error('no address'), { code: 'ENOTFOUND' }), []);
        callback(null, first.address, first.family);
      });
    },
  };
}

/** Https to public addresses: production. */
export const PUBLIC_HOSTS_ONLY = createAddressRules({ allowHttp: false, admitsAddress: isPublicAddress });

/** Any host, over http too: the simulator serves its files on loopback. */
export const ANY_HOST: AddressRules = {
  refuse(url) {
    if (url.username !== '' || url.password !== '') return 'insecure_url';
    return url.protocol === 'https:' || url.protocol === 'http:' ? null : 'insecure_url';
  },
  lookup: systemLookup as LookupFunction,
};
