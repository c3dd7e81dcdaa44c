export type StoreFailureReason =
  /** 401, 403 or 410: read the task again for a fresh URL. */
  | 'url_expired'
  | 'http_status'
  | 'transport'
  | 'length_mismatch'
  | 'not_media'
  | 'private_host'
  | 'insecure_url'
  | 'too_large'
  /** Our own disk, or an id that can't be a file name. */
  | 'storage';

export interface StoredFile {
  readonly kind: 'stored';
  /** `<request id>/<index>.<extension>`, relative to the directory, so that the directory can move. */
  readonly location: string;
  readonly bytes: number;
  /** Hex. */
  readonly sha256: string;
  /** What the bytes are, whatever was announced. */
  readonly contentType: string | null;
  readonly warning?: 'format_differs';
}

export interface StoreFailure {
  readonly kind: 'failed';
  readonly reason: StoreFailureReason;
  readonly httpStatus: number | null;
  /** The transport's, the file system's, or ours. At most 64 plain characters; never a URL or a path. */
  readonly errorCode: string | null;
}

export type StoreResult = StoredFile | StoreFailure;

/** Carries a reason up to `fetchAndStore`, which turns it into a result; it never leaves this folder. */
export class StoreFault extends Error {
  readonly reason: StoreFailureReason;
  readonly errorCode: string | null;
  readonly httpStatus: number | null;

  constructor(reason: StoreFailureReason, errorCode: string | null = null, httpStatus: number | null = null) {
    super(reason);
    this.name = 'StoreFault';
    this.reason = reason;
    this.errorCode = errorCode;
    this.httpStatus = httpStatus;
  }
}

/** Only the code: messages of the network and the file system hold host names and paths. */
export function plainErrorCode(error: unknown): string | null {
  if (!(error instanceof Error)) return null;
  for (const candidate of [(error as NodeJS.ErrnoException).code, error.name]) {
    if (typeof candidate === 'string' && /^[A-Za-z0-9_.-]{1,64}$/.test(candidate)) return candidate;
  }
  return null;
}
