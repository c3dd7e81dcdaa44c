/** One HTTP answer, before any fault is laid over it. */
export interface Answer {
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  /** A list of pieces is sent chunk by chunk, `intervalMs` apart. */
  readonly body: Buffer | StreamedBody;
}

export interface StreamedBody {
  readonly pieces: Iterable<Buffer>;
  readonly count: number;
  readonly intervalMs: number;
}

export function isStreamed(body: Buffer | StreamedBody): body is StreamedBody {
  return !Buffer.isBuffer(body);
}

export function json(status: number, value: unknown, headers: Readonly<Record<string, string>> = {}): Answer {
  return {
    status,
    headers: { 'content-type': 'application/json', ...headers },
    body: Buffer.from(JSON.stringify(value)),
  };
}

/** A field at fault, in the shape that the provider lists under `errors`. */
export interface FieldError {
  readonly loc: readonly (string | number)[];
  readonly msg: string;
  readonly type: string;
}

export function refusal(
  status: number,
  code: string,
  message: string,
  headers: Readonly<Record<string, string>> = {},
): Answer {
  return json(status, { code, message }, headers);
}

export function validationRefusal(errors: readonly FieldError[]): Answer {
  return json(422, { code: 'validation_error', message: 'Request validation failed', errors });
}

export function xml(status: number, code: string, message: string): Answer {
  const text = `<?xml version="1.0" encoding="UTF-8"?><Error><Code>${code}</Code><Message>${message}</Message></Error>`;
  return { status, headers: { 'content-type': 'application/xml' }, body: Buffer.from(text) };
}

const USUAL: Readonly<Record<number, readonly [code: string, message: string]>> = {
  400: ['invalid_request', 'The request is not valid'],
  401: ['auth_invalid', 'Invalid or missing API key'],
  402: ['insufficient_balance', 'Insufficient balance'],
  403: ['forbidden', 'This account has no access to this endpoint'],
  404: ['not_found', 'Not found'],
  405: ['method_not_allowed', 'Method not allowed'],
  413: ['payload_too_large', 'The upload is too large'],
  422: ['unprocessable_entity', 'The request could not be processed'],
  429: ['rate_limit_exceeded', 'Too many requests'],
  500: ['internal_error', 'Internal server error'],
  502: ['upstream_error', 'Upstream error'],
  503: ['service_unavailable', 'The service is temporarily unavailable'],
};

/** What the provider usually says under this status; a gateway's page for those it doesn't document. */
export function usualRefusal(status: number): Answer {
  const usual = USUAL[status];
  if (usual !== undefined) return refusal(status, usual[0], usual[1]);
  if (status >= 300 && status < 400) return { status, headers: {}, body: Buffer.alloc(0) };
  const page = `<html><head><title>${status}</title></head><body><h1>${status}</h1></body></html>`;
  return { status, headers: { 'content-type': 'text/html' }, body: Buffer.from(page) };
}
