import type { IncomingMessage } from 'node:http';
import { OnetakeError } from '../core/errors.ts';
import type { KeyBehaviour } from './accounts.ts';
import { handleApi } from './api-server.ts';
import { control } from './control.ts';
import { filePath, handleFile, SignedUrls } from './file-server.ts';
import { listen, type RunningServer } from './http.ts';
import type { Ledger } from './ledger.ts';
import { parseKeys, parseOptions, type SimulatorOptions, type SimulatorSettings } from './options.ts';
import { parseScript, type ScriptRule } from './script.ts';
import type { Task, TaskFile } from './tasks.ts';
import { World } from './world.ts';

/** Where a started simulator is. URLs are without a slash at the end. */
export interface SimulatorAddress {
  /** What a client takes for the provider's base URL. */
  readonly url: string;
  /** Another origin on purpose: a key that is sent there is a fault, and is answered with 400. */
  readonly filesUrl: string;
  readonly port: number;
  readonly filesPort: number;
}

/** The provider's API on loopback: forms in, tasks and audible files out, faults by script. */
export interface Simulator {
  /**
   * Listens. Once per simulator; a second call gives the same address.
   * @throws OnetakeError `simulator_failed` when a port is taken, `stopped` after `stop()`.
   */
  start(): Promise<SimulatorAddress>;
  /** Ends every connection, held ones too, without waiting for anybody. Any number of times. */
  stop(): Promise<void>;
  ledger(): Ledger;
  /**
   * Replaces the rules; POSTs go on being counted.
   * @throws OnetakeError `invalid_option` with every problem by its path; the old rules then stay.
   */
  setScript(rules: readonly ScriptRule[]): void;
  /** Replaces the keys, as in the options; accounts keep their tasks and limits. */
  setKeys(keys: Readonly<Record<string, KeyBehaviour>>): void;
  /** Forgets tasks, counts and windows. Script and keys stay, and count from now on. */
  reset(): void;
  [Symbol.asyncDispose](): Promise<void>;
}

/** @throws OnetakeError `invalid_option` that names every problem. */
export function createSimulator(options: SimulatorOptions = {}): Simulator {
  let settings: SimulatorSettings = parseOptions(options);
  let world = new World(settings);
  const urls = new SignedUrls();
  let servers: RunningServer[] = [];
  let starting: Promise<SimulatorAddress> | undefined;
  let stopped: Promise<void> | undefined;

  const event = (action: 'script' | 'keys' | 'reset') =>
    settings.onEvent?.({ type: 'control', at: settings.clock.now(), action });

  const controls = {
    ledger: () => world.ledger(),
    setScript: (rules: unknown) => {
      settings = { ...settings, script: parseScript(rules) };
      world.setScript(settings.script);
      event('script');
    },
    reset: () => {
      world = new World(settings);
      event('reset');
    },
  };

  const begin = async (): Promise<SimulatorAddress> => {
    const { host, port, filesPort } = settings;
    const surroundings = { settings, world: () => world };
    const files = await listen(
      (request, response, url) => handleFile(surroundings, urls, request, response, url),
      host,
      filesPort,
    );
    servers = [files];
    const api = {
      ...surroundings,
      sign: (task: Task, file: TaskFile) =>
        files.url + urls.issue(filePath(task, file), settings.clock.now() + settings.urlTtlMs),
      control: (request: IncomingMessage, path: string) => control(controls, request, path),
    };
    const server = await listen(
      (request, response, url) => handleApi(api, request, response, url),
      host,
      port,
    );
    servers = [files, server];
    return { url: server.url, filesUrl: files.url, port: server.port, filesPort: files.port };
  };

  const close = async () => {
    await starting?.catch(() => undefined);
    await Promise.all(servers.map((server) => server.close()));
  };

  const simulator: Simulator = {
    start: () => {
      if (stopped !== undefined) {
        return Promise.reject(new OnetakeError('stopped', 'This simulator was stopped; create another one.'));
      }
      // One port of two is nothing to leave open behind a refusal.
      starting ??= begin().catch(async (error: unknown) => {
        await Promise.all(servers.map((server) => server.close()));
        throw error;
      });
      return starting;
    },
    stop: () => {
      stopped ??= close();
      return stopped;
    },
    ledger: controls.ledger,
    setScript: controls.setScript,
    setKeys: (keys) => {
      settings = { ...settings, keys: parseKeys(keys) };
      world.accounts.setKeys(settings.keys);
      event('keys');
    },
    reset: controls.reset,
    [Symbol.asyncDispose]: () => simulator.stop(),
  };
  return simulator;
}
