import { OnetakeError } from '../../core/errors.ts';

/** Throws `missing_api_key` for a blank key: the provider would only answer 401. */
export function headersFor(apiKey: string, contentType?: string): Record<string, string> {
  if (apiKey.trim() === '') throw new OnetakeError('missing_api_key', 'The API key is blank.');
  return {
    authorization: `Bearer ${apiKey}`,
    accept: 'application/json',
    'accept-encoding': 'identity',
    'user-agent': 'onetake',
    ...(contentType === undefined ? {} : { 'content-type': contentType }),
  };
}
