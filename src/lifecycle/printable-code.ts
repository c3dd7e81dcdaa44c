const PLAIN_CODE = /^[A-Za-z0-9_.:-]{1,64}$/;

/** A code that an adapter told, as it may be stored: whatever isn't one may be prose or data. */
export function printableCode(code: unknown): string | null {
  if (code === null || code === undefined) return null;
  return typeof code === 'string' && PLAIN_CODE.test(code) ? code : 'unprintable';
}
