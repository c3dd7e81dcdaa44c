import { createInterface } from 'node:readline';
import { createPoller, createWorker, type ProcessOptions } from '../../src/worker.ts';

// What a child process runs: a worker or a poller, made as an app makes it. Its events go to stdout, one JSON
// line each; SIGTERM stops it in order.

/** In the environment variable ONETAKE_TEST_CHILD, as JSON. */
export interface WorkerChildOptions extends Pick<ProcessOptions, 'config' | 'connectionString' | 'name'> {
  readonly role: 'worker' | 'poller';
  readonly apiKey: string;
  /** The key never comes: attempts are committed and nothing is ever sent. */
  readonly withholdKey?: boolean;
  /** Obeys `WorkerChildOrder`s on stdin, one JSON line each; the key comes only on an order. */
  readonly obeys?: boolean;
}

export type WorkerChildOrder =
  | { readonly giveKey: true }
  /** Sets the wall clock, by so much, as somebody does who corrects it, or as a suspended machine finds it. */
  | { readonly setClockByMs: number };

const { role, apiKey, withholdKey, obeys, ...options } = JSON.parse(
  process.env['ONETAKE_TEST_CHILD'] ?? '{}',
) as WorkerChildOptions;
const say = (line: object): void => void process.stdout.write(`${JSON.stringify(line)}\n`);
let giveKey = (_key: string) => {};
const ordered = new Promise<string>((resolve) => {
  giveKey = resolve;
});
if (obeys === true) {
  createInterface({ input: process.stdin }).on('line', (line) => {
    const order = JSON.parse(line) as WorkerChildOrder;
    if ('giveKey' in order) giveKey(apiKey);
    else {
      const now = Date.now;
      Date.now = () => now() + order.setClockByMs;
    }
    say({ obeyed: order });
  });
}
const child = (role === 'worker' ? createWorker : createPoller)({
  ...options,
  credentials: () => {
    if (withholdKey === true) return new Promise<string>(() => undefined);
    return obeys === true ? ordered : apiKey;
  },
  onEvent: (name, event) => say({ name, event }),
});
process.on('SIGTERM', () => {
  void child.stop().then(() => process.exit(0));
});
await child.start();
say({ ready: process.pid });
