import { Agent } from 'undici';
import { OnetakeError, suggestion } from '../../core/errors.ts';
import { outcomeOfTransportFailure } from '../../core/outcome.ts';
import type { Provider, SubmissionOutcome } from '../../core/provider.ts';
import { parseBaseUrl } from './base-url.ts';
import { provenOracle } from './proven-oracle.ts';
import { checkKeyOnce, isReachableOnce } from './reachable.ts';
import { readTaskOnce } from './read-task.ts';
import { submitOnce } from './submit.ts';

export interface SoniloProviderOptions {
  /** `https://api.sonilo.com`, or a gateway's address in front of it. `http:` only on loopback. */
  readonly baseUrl: string;
  /** Permits `http:` to any host, for a simulator on a private network. The key travels unencrypted. */
  readonly allowPlainHttp?: boolean;
}

const OPTION_NAMES = ['baseUrl', 'allowPlainHttp'];

/** Throws `invalid_option` for an address that can't be used. Connects on first use. */
export function createSoniloProvider(options: SoniloProviderOptions): Provider {
  for (const name of Object.keys(options)) {
    if (OPTION_NAMES.includes(name)) continue;
    throw new OnetakeError(
      'invalid_option',
      `Unknown option of the Sonilo provider.${suggestion(name, OPTION_NAMES)}`,
      {
        hint: `Known options: ${OPTION_NAMES.join(', ')}.`,
      },
    );
  }
  if (options.allowPlainHttp !== undefined && typeof options.allowPlainHttp !== 'boolean') {
    throw new OnetakeError('invalid_option', 'allowPlainHttp: expected true or false.');
  }
  const base = parseBaseUrl(options.baseUrl, options.allowPlainHttp === true);
  const reads = new Agent({ allowH2: false, pipelining: 1, connect: { timeout: 10_000 } });
  const proven = provenOracle();
  let closing: Promise<void> | undefined;
  return {
    name: 'sonilo',
    submit: (submission) =>
      closing === undefined ? submitOnce(base, submission, proven) : Promise.resolve(CLOSED),
    readTask: (read) => readTaskOnce(base, reads, read),
    selfTest: () => proven.prove(),
    isReachable: (timeoutMs) => isReachableOnce(base, reads, timeoutMs),
    checkKey: (apiKey, timeoutMs) =>
      checkKeyOnce(base, reads, apiKey, timeoutMs).catch(() => 'unknown' as const),
    close() {
      closing ??= reads.close();
      proven.oracle.close();
      return closing;
    },
  };
}

const CLOSED: SubmissionOutcome = {
  ...outcomeOfTransportFailure({ unsent: true, ownDoing: true }),
  evidence: {
    phase: 'unsent',
    headersSent: false,
    headersSentProof: 'kept_back',
    httpStatus: null,
    errorCode: 'provider_closed',
    providerTaskId: null,
    responseAgeMs: null,
    closed: true,
  },
  retryAfterMs: null,
};
