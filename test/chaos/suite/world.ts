import { type ChildProcess, fork } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { migrate } from '../../../src/worker.ts';
import { videoBytes } from '../../support/video-bytes.ts';
import { Ledger } from './ledger.ts';
import { ChaosPostgres } from './postgres.ts';
import { ManagedProcess } from './processes.ts';
import type { LedgerEvent, ProviderOptions, ProviderOrder } from './provider/ledger-events.ts';
import { ACCOUNT_NAMES, configuration, keyOf, keyVariableOf, UPLOAD_BYTES, uploadName } from './settings.ts';
import { TcpProxy } from './tcp-proxy.ts';

/** Never killed, so that their memory can be watched; everything else happens to them as well. */
export const STEADY = ['worker-1', 'poller-1'] as const;
export const PROCESS_NAMES = ['worker-1', 'worker-2', 'worker-3', 'poller-1', 'poller-2'] as const;
export type ProcessName = (typeof PROCESS_NAMES)[number];

/** What their roles say: onetake raises what its promises need, and names its isolation itself. */
const SESSION_SETTINGS: Readonly<Partial<Record<ProcessName, Readonly<Record<string, string>>>>> = {
  'worker-1': { synchronous_commit: 'off' },
  'worker-2': { synchronous_commit: 'off', default_transaction_isolation: 'repeatable\\ read' },
  'poller-2': { default_transaction_isolation: 'serializable' },
};

export interface ChaosWorld {
  readonly postgres: ChaosPostgres;
  readonly ledger: Ledger;
  readonly processes: ReadonlyMap<ProcessName, ManagedProcess>;
  /** Before the provider, for everybody. */
  readonly providerProxy: TcpProxy;
  /** The app's and the operators' own ways to the database. */
  readonly appProxy: TcpProxy;
  readonly operatorProxy: TcpProxy;
  readonly databaseProxies: ReadonlyMap<string, TcpProxy>;
  readonly events: ReadonlyMap<string, number>;
  /** The app's files. */
  readonly uploads: readonly string[];
  /** What lies in the spool of the workers, which share one. */
  spooled(): readonly string[];
  order(order: ProviderOrder): void;
  /** All processes of onetake at once, in the middle of whatever they do. */
  kill(): Promise<unknown>;
  stop(): Promise<void>;
}

export interface WorldOptions {
  readonly seed: string;
  readonly onFault: (what: string) => void;
  readonly note: (what: string) => void;
}

export async function openWorld(options: WorldOptions): Promise<ChaosWorld> {
  const directory = mkdtempSync(join(tmpdir(), 'onetake-chaos-'));
  const endings: (() => Promise<unknown> | undefined)[] = [];
  const stop = async () => {
    for (const end of endings.splice(0).reverse()) await end();
    rmSync(directory, { recursive: true, force: true });
  };
  try {
    options.note('starting PostgreSQL');
    const postgres = await ChaosPostgres.start(join(directory, 'postgres'));
    endings.push(() => postgres.stop());
    const proxyTo = async (target: () => number) => {
      const proxy = await TcpProxy.open(target);
      endings.push(() => proxy.close());
      return proxy;
    };
    let providerPort = 0;
    const providerProxy = await proxyTo(() => providerPort);
    const providerUrl = `http://127.0.0.1:${providerProxy.port}`;
    const ledger = new Ledger();
    const provider = await startProvider(
      { seed: options.seed, publicUrl: providerUrl, connectionString: postgres.connectionString },
      ledger,
      options.onFault,
    );
    providerPort = provider.port;
    endings.push(provider.stop);

    const config = configuration(providerUrl);
    writeFileSync(join(directory, 'onetake.config.json'), JSON.stringify(config));
    const uploads = UPLOAD_BYTES.map((bytes) => {
      const path = join(directory, uploadName(bytes));
      writeFileSync(path, videoBytes({ bytes }));
      return path;
    });
    options.note('migrating');
    await migrate({ connectionString: postgres.connectionString, config });

    const databaseProxies = new Map<string, TcpProxy>();
    const databaseProxy = async (name: string) => {
      const proxy = await proxyTo(() => postgres.port);
      databaseProxies.set(name, proxy);
      return proxy;
    };
    const events = new Map<string, number>();
    const processes = new Map<ProcessName, ManagedProcess>();
    for (const name of PROCESS_NAMES) {
      const proxy = await databaseProxy(name);
      const child = new ManagedProcess({
        name,
        role: name.startsWith('worker') ? 'worker' : 'poller',
        directory,
        environment: environmentOf(withSettings(postgres.connectionString, SESSION_SETTINGS[name]), proxy),
        proxy,
        onEvent: (event) => events.set(event, (events.get(event) ?? 0) + 1),
        onFault: options.onFault,
      });
      processes.set(name, child);
      endings.push(() => child.kill());
    }
    const appProxy = await databaseProxy('app');
    const operatorProxy = await databaseProxy('operator');
    for (const child of processes.values()) child.start();
    const order = provider.order;
    const kill = () => Promise.all([...processes.values()].map((child) => child.kill()));
    const spooled = () => textsIn(join(directory, '.onetake', 'spool'));
    const proxies = { providerProxy, appProxy, operatorProxy, databaseProxies };
    return { postgres, ledger, processes, ...proxies, events, uploads, spooled, order, kill, stop };
  } catch (error) {
    await stop();
    throw error;
  }
}

function textsIn(directory: string): string[] {
  try {
    // Beside them lies a note of the databases that were seen; and what a killed process was just trying to write.
    const names = readdirSync(directory).filter((name) => !/^(\.?installations\.json|\.probe\.)/.test(name));
    return names.flatMap((name) => textOf(join(directory, name)) ?? []);
  } catch {
    return [];
  }
}

/** Undefined for a file that a worker has just removed. */
function textOf(file: string): string | undefined {
  try {
    return readFileSync(file, 'utf8');
  } catch {
    return undefined;
  }
}

export function through(proxy: TcpProxy, connectionString: string): string {
  const url = new URL(connectionString);
  url.port = String(proxy.port);
  return url.href;
}

function withSettings(connectionString: string, settings: Readonly<Record<string, string>> = {}): string {
  const url = new URL(connectionString);
  const options = Object.entries(settings).map(([name, value]) => `-c ${name}=${value}`);
  if (options.length > 0) url.searchParams.set('options', options.join(' '));
  return url.href.replaceAll('+', '%20');
}

function environmentOf(connectionString: string, proxy: TcpProxy): Record<string, string> {
  const keys = ACCOUNT_NAMES.map((account) => [keyVariableOf(account), keyOf(account)]);
  return { DATABASE_URL: through(proxy, connectionString), ...Object.fromEntries(keys) };
}

interface ProviderProcess {
  readonly port: number;
  readonly order: (order: ProviderOrder) => void;
  readonly stop: () => Promise<void>;
}

async function startProvider(
  options: ProviderOptions,
  ledger: Ledger,
  onFault: (what: string) => void,
): Promise<ProviderProcess> {
  const child: ChildProcess = fork(join(import.meta.dirname, 'provider/ledger-provider.ts'), [], {
    env: { PATH: process.env['PATH'], CHAOS_PROVIDER: JSON.stringify(options) },
    stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
  });
  let isWanted = true;
  const exited = new Promise<void>((resolve) => child.once('exit', () => resolve()));
  void exited.then(() => {
    if (isWanted) onFault('the provider of the suite ended by itself');
  });
  const port = await new Promise<number>((resolve, reject) => {
    child.once('exit', () => reject(new Error('the provider ended before it was ready')));
    child.on('message', (event: LedgerEvent) => {
      if (event.type === 'ready') resolve(event.port);
      else ledger.enter(event);
    });
  });
  return {
    port,
    order: (order) => void (child.connected && child.send(order)),
    stop: () => {
      isWanted = false;
      child.kill('SIGKILL');
      return exited;
    },
  };
}
