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

type Bits = readonly number[];

const blockedIpv4 = NOT_PUBLIC_IPV4.map(([network, prefix]) => ({ network: bitsOfIpv4(network), prefix }));
const globalIpv6 = { network: bitsOfIpv6('2000::'), prefix: 3 };
const blockedIpv6 = NOT_PUBLIC_WITHIN_GLOBAL_IPV6.map(([network, prefix]) => ({
  network: bitsOfIpv6(network),
  prefix,
}));

/** Spelled out, without brackets: no name, no zone (`fe80::1%eth0`), no short form of IPv4 (`127.1`). */
export function isAddress(text: string): boolean {
  return bitsOfIpv4(text).length + bitsOfIpv6(text).length > 0;
}

/** False for whatever isn't an address at all. */
export function isPublicAddress(address: string): boolean {
  const ipv4 = bitsOfIpv4(address);
  if (ipv4.length > 0) return !blockedIpv4.some((block) => isWithin(ipv4, block));
  const ipv6 = bitsOfIpv6(address);
  if (ipv6.length === 0) return false;
  const translated = nat64Target(ipv6);
  if (translated !== null) return isPublicAddress(translated);
  return isWithin(ipv6, globalIpv6) && !blockedIpv6.some((block) => isWithin(ipv6, block));
}

/** Ends of names that no public resolver knows: reserved, or only ever used inside. */
const INSIDE =
  /\.(localhost|localdomain|local|internal|intranet|private|corp|home|lan|svc|test|invalid|onion|home\.arpa)$/;

/** Names that mean "inside" whatever they resolve to. A name without a dot follows the search domains. */
export function isInsideName(hostname: string): boolean {
  const name = hostname.replace(/\.$/, '').toLowerCase();
  return !name.includes('.') || INSIDE.test(name);
}

/** On an IPv6-only network every IPv4 host is reached through 64:ff9b::/96: judge the host behind it. */
function nat64Target(bits: Bits): string | null {
  if (!isWithin(bits, NAT64)) return null;
  const last = bits.slice(96).join('');
  return [0, 8, 16, 24].map((from) => Number.parseInt(last.slice(from, from + 8), 2)).join('.');
}

const NAT64 = { network: bitsOfIpv6('64:ff9b::'), prefix: 96 };

function isWithin(address: Bits, block: { readonly network: Bits; readonly prefix: number }): boolean {
  return block.network.slice(0, block.prefix).every((bit, index) => bit === address[index]);
}

/** None where it is no address. */
function bitsOfIpv4(text: string): Bits {
  if (!/^(0|[1-9]\d{0,2})(\.(0|[1-9]\d{0,2})){3}$/.test(text)) return [];
  const bytes = text.split('.').map(Number);
  return bytes.every((byte) => byte <= 255) ? bytes.flatMap((byte) => bitsOf(byte, 8)) : [];
}

function bitsOfIpv6(text: string): Bits {
  // The URL parser writes any spelling of an IPv6 address in its one canonical form, and refuses a zone.
  if (!/^[0-9a-f:.]+$/i.test(text) || !URL.canParse(`http://[${text}]/`)) return [];
  const canonical = new URL(`http://[${text}]/`).hostname.slice(1, -1);
  const [before = [], after = []] = canonical.split('::').map(groupsOf);
  const zeros = Array.from({ length: 8 - before.length - after.length }, () => 0);
  return [...before, ...zeros, ...after].flatMap((group) => bitsOf(group, 16));
}

function groupsOf(text: string): readonly number[] {
  return text === '' ? [] : text.split(':').map((group) => Number.parseInt(group, 16));
}

function bitsOf(value: number, width: number): Bits {
  return Array.from(value.toString(2).padStart(width, '0'), Number);
}
