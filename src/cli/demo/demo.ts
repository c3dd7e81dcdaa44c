import { mkdir, writeFile } from 'node:fs/promises';
import { join, relative, resolve } from 'node:path';
import { locateBinaries } from '../../embedded/binaries.ts';
import { EXIT } from '../errors.ts';
import type { Terminal } from '../output.ts';
import { aborted } from '../signals.ts';
import { checkFiles } from './check-files.ts';
import { showLedger } from './closing.ts';
import type { DatabaseFacts } from './facts.ts';
import { DemoFailure } from './failure.ts';
import { Narrator } from './narrator.ts';
import { readDatabase, readLedger } from './read-facts.ts';
import { type Reconciliation, reconcile } from './reconcile.ts';
import { createScreen, fill, type Screen } from './screen.ts';
import { SONGS } from './songs.ts';
import { CONFIG_FILE, ENV_FILE, type Stage, setStage } from './stage.ts';
import { type StoryFacts, tellStory } from './story.ts';

export interface DemoOptions {
  /** Leaves everything running until it is interrupted. */
  readonly keep: boolean;
  readonly json: boolean;
  /** Where the songs go. Default: `generations` in the working directory. */
  readonly directory?: string;
}

const PLAYLIST = 'demo.m3u8';
const AUDIT_LIMIT_MS = 15_000;

/**
 * The whole story on real parts. Resolves to the exit code: 0 when the provider's books and the database
 * agree, 1 when they don't or a child died, 130 when `signal` aborted. Everything it started is gone then.
 */
export async function demo(options: DemoOptions, terminal: Terminal, signal: AbortSignal): Promise<number> {
  const screen = createScreen(terminal);
  const failing = new AbortController();
  const ended = AbortSignal.any([signal, terminal.closed, failing.signal]);
  const stops: (() => Promise<unknown>)[] = [];
  try {
    return await perform(options, terminal, screen, {
      signal: ended,
      fail: (failure) => failing.abort(failure),
      defer: (stop) => stops.push(stop),
    });
  } catch (error) {
    screen.status([]);
    if (signal.aborted || terminal.closed.aborted) {
      terminal.note('Interrupted: everything the demo started is ended.');
      return EXIT.interrupted;
    }
    // An aborted wait says nothing; the reason why it was aborted does.
    const failure: unknown = failing.signal.aborted ? failing.signal.reason : error;
    if (!(failure instanceof DemoFailure)) throw failure;
    terminal.error({ code: 'demo_failed', message: failure.message, exitCode: EXIT.failed });
    if (failure.stderrTail !== '') terminal.note(failure.stderrTail);
    return EXIT.failed;
  } finally {
    failing.abort();
    for (const stop of stops.reverse()) await stop().catch(() => undefined);
  }
}

interface Running {
  readonly signal: AbortSignal;
  readonly fail: (failure: DemoFailure) => void;
  readonly defer: (stop: () => Promise<unknown>) => void;
}

async function perform(
  options: DemoOptions,
  terminal: Terminal,
  screen: Screen,
  { signal, fail, defer }: Running,
): Promise<number> {
  // Nothing is begun that can't go on.
  locateBinaries();
  const directory = resolve(options.directory ?? 'generations');
  const narrator = new Narrator(screen);
  screen.print(
    '',
    screen.paint('bold', 'onetake demo: thirty songs, one outage, and no song is paid for twice'),
    '',
  );
  screen.say(
    'Everything runs here: a database of its own, a simulated provider, two workers, one poller. ' +
      'It reads no configuration and no key, and never leaves this machine.',
  );
  const stage = await setStage({
    directory,
    signal,
    onEvent: (name, line) => narrator.tell(name, line),
    onDeath: fail,
    defer,
  });
  screen.print('', ...processLines(stage, screen));

  const story = await tellStory(stage, screen, narrator, signal);
  let audit = await auditBooks(stage, directory, signal);
  screen.act('The books: the provider over HTTP, beside the database');
  showLedger(screen, audit.reconciliation, audit.database.transitions);
  const atRisk = story.metOutage + story.waitedUntouched;
  screen.say(
    `The breaker's worth: ${story.metOutage} songs met the outage before it opened, not all ${atRisk} that ` +
      'were left.',
  );
  await writePlaylist(directory, audit.database);
  screen.print('');
  screen.say(`Hear all songs: ${shown(join(directory, PLAYLIST))}`);
  screen.say(`One by one:     ${shown(directory)}/<request id>/0.wav`);
  showVerdict(screen, audit.reconciliation);

  if (options.keep) {
    screen.print('', ...keepLines(stage, screen));
    await aborted(signal);
    if (signal.reason instanceof DemoFailure) throw signal.reason;
    // Somebody may have posted by hand in the meantime, so the books are compared once more.
    audit = await auditBooks(stage, directory, AbortSignal.timeout(AUDIT_LIMIT_MS));
    showVerdict(screen, audit.reconciliation);
  }
  if (options.json) terminal.value(jsonOf(stage, directory, story, audit, screen.seconds()));
  return audit.reconciliation.agrees ? EXIT.done : EXIT.failed;
}

interface Audit {
  readonly database: DatabaseFacts;
  readonly reconciliation: Reconciliation;
}

async function auditBooks(stage: Stage, directory: string, signal: AbortSignal): Promise<Audit> {
  const ledger = await readLedger(stage.providerUrl, signal);
  const database = await readDatabase(stage.database);
  const files = await checkFiles(directory, database.requests);
  return { database, reconciliation: reconcile(SONGS.length, ledger, database, files) };
}

function processLines({ processes }: Stage, { paint }: Screen): string[] {
  return processes.map(
    ({ name, pid, note }) => `  ${fill(name, 9)} ${paint('dim', `pid ${String(pid).padEnd(8)}`)} ${note}`,
  );
}

function showVerdict(screen: Screen, { agrees, differences }: Reconciliation): void {
  screen.print('');
  if (agrees) {
    const verdict = `${SONGS.length} songs, ${SONGS.length} charges, none charged twice. The books agree.`;
    screen.print(screen.paint('green', `  ✓ ${verdict}`));
    return;
  }
  screen.print(screen.paint('red', '  ✗ The books do not agree:'));
  for (const difference of differences) screen.say(`  ${difference}`);
}

function keepLines({ connectionString, surroundings, providerUrl }: Stage, { paint }: Screen): string[] {
  const { directory } = surroundings;
  return [
    '  Everything goes on running. Ctrl-C ends it, after one more look at the books.',
    '',
    `  database  ${connectionString}`,
    `  provider  ${providerUrl}`,
    `  commands  onetake --config ${join(directory, CONFIG_FILE)} \\`,
    `              --env-file ${join(directory, ENV_FILE)} breaker list`,
  ].map((line) => (line.startsWith('  Everything') ? paint('bold', line) : line));
}

/** The storage names files by request id; a playlist gives the titles back. */
async function writePlaylist(directory: string, { requests }: DatabaseFacts): Promise<void> {
  const entries = requests.flatMap(({ prompt, files }) =>
    files.map(({ location }) => `#EXTINF:-1,${prompt}\n${location}\n`),
  );
  await mkdir(directory, { recursive: true });
  await writeFile(join(directory, PLAYLIST), `#EXTM3U\n${entries.join('')}`);
}

/** As one would type it from here. */
function shown(path: string): string {
  const here = relative(process.cwd(), path);
  return here.startsWith('..') ? path : `./${here}`;
}

function jsonOf(
  { processes, providerUrl }: Stage,
  directory: string,
  story: StoryFacts,
  { database, reconciliation }: Audit,
  seconds: number,
) {
  const { agrees, differences, figures, phases, frozen } = reconciliation;
  return {
    agrees,
    differences,
    figures,
    phases,
    frozen,
    ...story,
    transitions: database.transitions,
    songs: database.requests.map(({ id, prompt, state, files }) => ({ id, prompt, state, files })),
    directory,
    providerUrl,
    processes: processes.map(({ name, pid }) => ({ name, pid })),
    durationMs: Math.round(seconds * 1_000),
  };
}
