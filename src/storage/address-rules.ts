import { lookup as systemLookup } from 'node:dns';
import { isIP, type LookupFunction } from 'node:net';
import { isInsideName, isPublicAddress } from '../core/public-address.ts';

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
