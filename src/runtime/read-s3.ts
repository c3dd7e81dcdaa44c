import type { S3Location } from '../storage/s3-objects.ts';
import type { Section } from './configuration-section.ts';

const KEYS = ['bucket', 'prefix', 'endpoint', 'region', 'forcePathStyle'];
const BUCKET = /^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$/;
const PREFIX = /^(?!.*\/\/)[A-Za-z0-9!_.*'()-][A-Za-z0-9!_.*'()/-]{0,511}$/;
const REGION = /^[a-z0-9-]{1,63}$/;

/** `storage.s3`. Credentials are the SDK's own business, so there is no setting for them. */
export function readS3(storage: Section, allowHttp: boolean): S3Location {
  const section = storage.child('s3', KEYS);
  const text = (key: string, pattern: RegExp, what: string): string | null => {
    if (!section.has(key)) return null;
    const value = section.get(key);
    if (typeof value === 'string' && pattern.test(value)) return value;
    section.refuse(key, `expected ${what}.`);
    return null;
  };
  const bucket = text(
    'bucket',
    BUCKET,
    'the name of a bucket, 3 to 63 small letters, digits, dots and dashes',
  );
  if (section.isObject && !section.has('bucket')) section.refuse('bucket', 'missing.');
  const prefix = text('prefix', PREFIX, 'the beginning of keys, without a slash in front');
  return {
    bucket: bucket ?? '',
    prefix: prefix === null || prefix.endsWith('/') ? (prefix ?? '') : `${prefix}/`,
    endpoint: readEndpoint(section, allowHttp),
    region: text('region', REGION, 'the name of a region, such as "eu-central-1"'),
    forcePathStyle: section.boolean('forcePathStyle', false),
  };
}

/** Never repeats the URL: it may carry a password. */
function readEndpoint(section: Section, allowHttp: boolean): string | null {
  if (!section.has('endpoint')) return null;
  const value = section.get('endpoint');
  const url = typeof value === 'string' && URL.canParse(value) ? new URL(value) : undefined;
  const isSafe = url?.protocol === 'https:' || (url?.protocol === 'http:' && allowHttp);
  if (url !== undefined && isSafe && url.username === '' && url.password === '' && url.search === '') {
    return url.href.replace(/\/+$/, '');
  }
  section.refuse(
    'endpoint',
    'expected an https: URL without user name, password and query (http: only with storage.allowPrivateHosts).',
  );
  return null;
}
