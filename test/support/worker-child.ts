import { createPoller, createWorker, type ProcessOptions } from '../../src/worker.ts';

// What a child process runs: a worker or a poller, made as an app makes it. Its events go to stdout, one JSON
// line each; SIGTERM stops it in order.

/** In the environment variable ONETAKE_TEST_CHILD, as JSON. */
export interface WorkerChildOptions extends Pick<ProcessOptions, 'config' | 'connectionString' | 'name'> {
  readonly role: 'worker' | 'poller';
  readonly apiKey: string;
  /** The key never comes: attempts are committed and nothing is ever sent. */
  readonly withholdKey?: boolean;
}

const { role, apiKey, withholdKey, ...options } = JSON.parse(
  process.env['ONETAKE_TEST_CHILD'] ?? '{}',
) as WorkerChildOptions;
const say = (line: object): void => void process.stdout.write(`${JSON.stringify(line)}\n`);
const child = (role === 'worker' ? createWorker : createPoller)({
  ...options,
  credentials: () => (withholdKey === true ? new Promise<string>(() => undefined) : apiKey),
  onEvent: (name, event) => say({ name, event }),
});
process.on('SIGTERM', () => {
  void child.stop().then(() => process.exit(0));
});
await child.start();
say({ ready: process.pid });
