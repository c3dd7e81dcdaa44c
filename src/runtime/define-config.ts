import type { CircuitBreakerSettings } from '../core/circuit-breaker.ts';
import type { LimitSetting } from '../core/field-limits.ts';
import type { OperationName } from '../core/operations.ts';
import type { PollSettings } from '../core/poll-schedule.ts';
import type { Deadlines, StreamTerms } from '../core/provider.ts';

/** What a configuration file may say. Every section and every setting may be left out. */
export interface OnetakeConfig {
  readonly database?: {
    /** Name of the environment variable that holds the connection string. Default `DATABASE_URL`. */
    readonly connectionStringEnv?: string;
  };
  /** By name. Left out: `sonilo` alone. */
  readonly providers?: Readonly<Record<string, ProviderConfig>>;
  /** By name. Left out: `default` alone. */
  readonly accounts?: Readonly<Record<string, AccountConfig>>;
  readonly operations?: Readonly<Partial<Record<OperationName, OperationConfig>>>;
  readonly worker?: {
    /** POSTs that one process holds open at most. 1 to 1,000, default 8. */
    readonly concurrency?: number;
    /** 100 to 60,000, default 1,000. */
    readonly rescueIntervalMs?: number;
    /** Where outcomes wait that the database can't take, from the working directory. Default `.onetake/spool`. */
    readonly spoolDirectory?: string;
  };
  /** Intervals 50 to 3,600,000, defaults 3,000 and 30,000; `concurrency` 1 to 1,000, default 16. */
  readonly poller?: Partial<PollSettings> & { readonly concurrency?: number };
  readonly storage?: {
    /** Where finished files go, from the working directory. Left out, only their URLs are kept. */
    readonly directory?: string;
    /** A bucket in its place. Its packages, @aws-sdk/client-s3 and @aws-sdk/lib-storage, are yours to install. */
    readonly s3?: S3Config;
    /** Permits private hosts and `http:`, for a simulator. Default false. */
    readonly allowPrivateHosts?: boolean;
  };
}

export interface S3Config {
  readonly bucket: string;
  /** Before every key, such as `songs/`. Default none. */
  readonly prefix?: string;
  /** Of a store that speaks like S3. Default that of AWS. */
  readonly endpoint?: string;
  /** Default what the SDK finds, such as AWS_REGION. */
  readonly region?: string;
  /** The bucket in the path and not in the host name. Default false. */
  readonly forcePathStyle?: boolean;
}

export interface ProviderConfig {
  /** `https:`, without credentials or query. `sonilo` has a default. */
  readonly baseUrl?: string;
}

export interface AccountConfig {
  /** One of `providers`. Default `sonilo`. */
  readonly provider?: string;
  /** Name of the environment variable that holds the key. Only `default` has one: `SONILO_API_KEY`. */
  readonly apiKeyEnv?: string;
  /** 1 to 1,000,000, default 60. */
  readonly requestsPerMinute?: number;
  /** 1 to 100,000, default 4. */
  readonly maxConcurrentGenerations?: number;
}

export interface OperationConfig {
  /**
   * `failureThreshold` 1 to 1,000, default 3; `cooldownMs` 100 to 86,400,000, default 30,000; `cooldownGrowth`
   * 1 to 10, default 1; `maxCooldownMs` from cooldownMs, default 600,000; `jitter` 0 to 0.5, default 0; `shadow`
   * default false.
   */
  readonly breaker?: Partial<CircuitBreakerSettings>;
  /** 50 to 600,000 each, rising; defaults 5,000, 60,000 and 90,000. */
  readonly deadlines?: Partial<Deadlines>;
  /** How long an attempt belongs to its worker. More than `submissionMs` + 2,000, default + 10,000. */
  readonly leaseMs?: number;
  /** How long a re-armed request waits before its next POST. 0 or more, default 120,000. */
  readonly rearmQuarantineMs?: number;
  /** Bounds `resubmitOn`. 1 to 100, default 3. */
  readonly maxSubmissions?: number;
  /** Statuses that, by your word, never follow a charge. Of 500, 502, 503, 504; default none. */
  readonly resubmitOn?: readonly ResubmittableStatus[];
  /** 1,000 to 86,400,000, default by operation. */
  readonly maxRunMs?: number;
  /** Of what is enqueued here without a `mode`. Only music operations have streams. Default `async`. */
  readonly mode?: 'async' | 'stream';
  /**
   * `idleMs` 50 to 3,600,000, default 600,000; `totalMs` 50 to 86,400,000, default 1,800,000; `contentCodes`: of
   * its `error` event, that don't count for the breaker.
   */
  readonly stream?: Partial<StreamTerms>;
  /** By field: other limits than the ones of the documentation, or `false`: the provider alone judges the field. */
  readonly limits?: Readonly<Record<string, LimitSetting>>;
}

export type ResubmittableStatus = 500 | 502 | 503 | 504;

/** Types a configuration and returns it as it is: it is checked when a process loads it. */
export function defineConfig(config: OnetakeConfig): OnetakeConfig {
  return config;
}
