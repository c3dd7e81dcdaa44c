/** The one line that the parent writes. After it the parent only keeps the pipe open: its end means stop. */
export type SupervisorRequest =
  | { readonly mode: 'ephemeral'; readonly durable: boolean }
  | { readonly mode: 'persistent'; readonly directory: string; readonly port: number | null };

export type FailureCode = 'embedded_postgres_missing' | 'embedded_postgres_failed';

/** JSON lines on the supervisor's stdout. */
export type SupervisorReport =
  | { readonly type: 'notice'; readonly message: string }
  | ({ readonly type: 'ready' } & RunningServer)
  | { readonly type: 'failed'; readonly code: FailureCode; readonly message: string; readonly hint?: string };

export interface RunningServer {
  readonly port: number;
  readonly password: string;
  readonly postmasterPid: number;
  readonly dataDirectory: string;
  /** The supervisor's own temporary directory; the parent removes it when the supervisor could not. */
  readonly workspace: string;
}

export type Notify = (message: string) => void;
