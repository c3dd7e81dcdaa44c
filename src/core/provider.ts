import type { EncodedFields } from './operations.ts';
import type { Outcome, Phase } from './outcome.ts';
import type { StreamTerms, SubmissionStream } from './stream.ts';

export type {
  StreamEnd,
  StreamPiece,
  StreamReading,
  StreamTerms,
  SubmissionStream,
} from './stream.ts';

/** All enforced by us, in ms: until connected, until the status line, until the body is read. */
export interface Deadlines {
  readonly connectMs: number;
  readonly firstResponseMs: number;
  readonly submissionMs: number;
}

/** A local file that goes with one POST. */
export interface SourceFile {
  readonly bytes: number;
  /** Such as `mp4`. */
  readonly container: string;
  /**
   * Once: a second call throws. It throws too (`media_changed`) in place of the last piece when the file was
   * written to meanwhile, so that nobody ever gets the whole of what was not meant.
   */
  chunks(): AsyncIterable<Uint8Array>;
}

export interface Submission {
  /** For correlation in wire evidence only; it is never sent. */
  readonly attemptId: string;
  readonly operation: string;
  readonly fields: EncodedFields;
  /** By field; what `fields` says under such a name is for us alone, and never sent. */
  readonly files?: Readonly<Record<string, SourceFile>>;
  readonly apiKey: string;
  readonly deadlines: Deadlines;
  readonly resubmitOn: readonly number[];
  /**
   * Asked at the last moment before the first byte: false once the send budget is used up. A provider
   * that gets false must send nothing and report *unsent by our own doing*.
   */
  readonly maySend: () => boolean;
  /**
   * Set: a stream is asked for, and the answer may be one. Its first event comes within `submissionMs` and is the
   * outcome; what follows is read from `SubmissionOutcome.stream`, within these terms.
   */
  readonly stream?: StreamTerms;
}

/** What says whether the first byte of a request went out. */
export type WireProof =
  /** undici's channel, which had proven itself in this process. */
  | 'oracle'
  /** An error that only comes before a connection can carry anything. */
  | 'error_code'
  /** It was never given to the network. */
  | 'kept_back'
  /** A status line came back. */
  | 'answer'
  /** The word of a provider that an app brought. */
  | 'provider';

/** What the wire showed of one POST. Ids and codes only: no body, no header, no URL. */
export interface WireEvidence {
  readonly phase: Phase;
  /** Whether the first byte of the request went out; null, or left out: nobody can tell. */
  readonly headersSent?: boolean | null;
  readonly headersSentProof?: WireProof | null;
  /** Something below us tried to write it a second time. A provider stops that before its first byte. */
  readonly repeatedSend?: boolean;
  readonly httpStatus: number | null;
  /** The provider's code, or the transport's. At most 64 plain characters. */
  readonly errorCode: string | null;
  readonly providerTaskId: string | null;
  /** Ms since the response began, when it ended up here; null when none began. */
  readonly responseAgeMs: number | null;
  /** Nothing of the request can arrive any more: its response was read, or its socket has ended. */
  readonly closed: boolean;
}

export interface SubmissionOutcome extends Outcome {
  readonly evidence: WireEvidence;
  /** With `rate_limited` and `concurrency_limited`: what `Retry-After` said. */
  readonly retryAfterMs: number | null;
  /** With `stream_started`, and only there. */
  readonly stream?: SubmissionStream;
}

export interface TaskRead {
  readonly taskId: string;
  readonly operation: string;
  /** As they were sent. */
  readonly fields: EncodedFields;
  readonly apiKey: string;
  readonly timeoutMs: number;
}

/** One file of a finished task. `url` is temporary, on another host, and never gets the key. */
export interface ResultFile {
  /** 0 to 9,999, its own among the files of its task, and the same in each reading. */
  readonly index: number;
  readonly kind: 'audio' | 'video';
  /** Of several that were ordered at once, which; from 0. */
  readonly variant: number;
  /** What was ordered has none; what comes with it (`drums`), or stands beside others (`es`), does. */
  readonly label: string | null;
  readonly url: string;
  readonly contentType: string | null;
  /** Exact length, where the provider states one. */
  readonly bytes: number | null;
}

export type ResultDocument = Readonly<Record<string, unknown>>;

export type TaskReading =
  | { readonly kind: 'processing' }
  | {
      readonly kind: 'succeeded';
      readonly files: readonly ResultFile[];
      /** What came beside or in place of files, as JSON that a database can hold; null where there is none. */
      readonly document: ResultDocument | null;
      readonly warnings: readonly string[];
    }
  /** `errorCode`: the provider's, at most 64 plain characters, and nothing that was sent. */
  | { readonly kind: 'failed'; readonly errorCode: string | null; readonly refunded: boolean | null }
  /** Told nothing about the task, which may well be fine: never its failure. */
  | {
      readonly kind: 'unreadable';
      readonly reason: 'transport' | 'http_status' | 'body' | 'unknown_status';
      readonly httpStatus: number | null;
      readonly errorCode: string | null;
      readonly retryAfterMs: number | null;
    };

/** Whether this process can prove that nothing was sent. */
export type WireOracleHealth =
  | 'healthy'
  /** Nothing is published where a POST is written. */
  | 'silent'
  /** Something is published, but not once, before the first byte, with the request and its socket. */
  | 'unknown_shape'
  /** The test could not run or did not end in time, for want of a loopback interface for example. */
  | 'untested';

export interface ProviderSelfTest {
  readonly wireOracle: WireOracleHealth;
  /** Why, where there is more to say: a transport's code. */
  readonly errorCode: string | null;
}

/** What a free request with a key told about it. */
export type KeyCheck = 'accepted' | 'refused' | 'unknown';

/**
 * The port between onetake and one generation API. `submit` resolves for whatever happens on the wire;
 * it must make at most one POST, follow no redirect and repeat nothing. A rejection is taken for *unknown*.
 *
 * *Unsent* is taken at its word: it returns the request to the queue, and the next POST is paid. Report it only
 * where no byte of the request can have left, never because an error looks like it.
 */
export interface Provider {
  readonly name: string;
  submit(submission: Submission): Promise<SubmissionOutcome>;
  readTask(read: TaskRead): Promise<TaskReading>;
  /**
   * Whether this machine can reach the provider at all, asked without a paid call; resolves false after
   * `timeoutMs`. A worker whose attempts all failed unsent asks before it goes on.
   */
  isReachable?(timeoutMs: number): Promise<boolean>;
  /**
   * Proves on loopback, once in a process, that *unsent* can be told from *unknown*; never rejects, and resolves
   * within a few seconds. Without *healthy*, only errors that come before a connection count as unsent.
   */
  selfTest?(): Promise<ProviderSelfTest>;
  /** Whether the provider takes this key, asked without a paid call; *unknown* after `timeoutMs`. Never rejects. */
  checkKey?(apiKey: string, timeoutMs: number): Promise<KeyCheck>;
  /** Closes idle connections. In-flight calls are awaited by their callers. */
  close(): Promise<void>;
}
