import type { CircuitBreakerState, TransitionCause } from '../../core/circuit-breaker.ts';
import { size } from '../text.ts';
import type { Snapshot } from './read-facts.ts';
import { fill, type Screen, WIDTH } from './screen.ts';
import { BREAKER_SETTINGS } from './stage.ts';

type Line = Readonly<Record<string, unknown>>;

/** Tells the children's events, as they come out of their pipes, in the order in which they arrive. */
export class Narrator {
  readonly #screen: Screen;
  /** By request id. */
  readonly #titles = new Map<string, string>();
  readonly #bytes = new Map<string, number>();
  #troubleBegins: (() => void) | undefined;

  constructor(screen: Screen) {
    this.#screen = screen;
  }

  /** Calls `begin` right before the first song is said to be frozen. */
  beforeTrouble(begin: () => void): void {
    this.#troubleBegins = begin;
  }

  know(requestId: string, title: string): void {
    this.#titles.set(requestId, title);
  }

  titleOf(requestId: string): string {
    return this.#titles.get(requestId) ?? requestId.slice(0, 8);
  }

  tell(process: string, line: Line): void {
    const screen = this.#screen;
    const requestId = text(line['requestId']);
    const title = `"${this.titleOf(requestId)}"`;
    switch (line['event']) {
      case 'submission:settled':
        if (line['to'] !== 'ambiguous') break;
        this.#troubleBegins?.();
        this.#troubleBegins = undefined;
        screen.event('✗', 'red', `${whatCame(line)}: ${title} is frozen.`);
        break;
      case 'breaker:transition':
        this.#tellTransition(line);
        break;
      case 'asset:stored':
        this.#bytes.set(requestId, Number(line['bytes']));
        break;
      case 'task:finished': {
        const bytes = this.#bytes.get(requestId);
        const length = bytes === undefined ? '' : size(bytes);
        if (line['to'] === 'succeeded') screen.event('♪', 'green', `${fill(title, 38)} ${length}`.trimEnd());
        else screen.event('!', 'yellow', `${title}: the provider failed.`);
        break;
      }
      case 'account:paused':
        screen.event('!', 'yellow', 'The provider answered 429: the account pauses.');
        break;
      case 'asset:failed':
      case 'process:trouble': {
        const code = text(line['errorCode']);
        screen.event('!', 'yellow', `${process}: trouble (${code}), it goes on.`);
        break;
      }
      default:
    }
  }

  #tellTransition(line: Line): void {
    const screen = this.#screen;
    const next = line['nextState'] as CircuitBreakerState;
    const waitMs = new Date(text(line['retryAt'])).getTime() - new Date(text(line['openedAt'])).getTime();
    const wait = `${(waitMs / 1_000).toFixed(1)} s`;
    switch (next) {
      case 'open':
        screen.event(
          '■',
          'red',
          `${WHY_OPEN[line['cause'] as TransitionCause] ?? 'Health is unknown'}: breaker OPEN, next probe in ${wait}.`,
        );
        break;
      case 'half_open':
        screen.event(
          '◧',
          'yellow',
          `Breaker HALF OPEN: "${this.titleOf(text(line['requestId']))}" is the probe.`,
        );
        break;
      case 'closed':
        screen.event('□', 'green', 'The probe was accepted: breaker CLOSED, the queue moves on.');
    }
  }
}

const WHY_OPEN: Readonly<Partial<Record<TransitionCause, string>>> = {
  failure_threshold: `${BREAKER_SETTINGS.failureThreshold} failures in a row`,
  probe_failed: 'The probe failed',
  probe_neutral: 'The probe told nothing',
  probe_lost: 'The probe was lost',
};

function whatCame(line: Line): string {
  if (line['httpStatus'] !== undefined) return `HTTP ${text(line['httpStatus'])}`;
  return line['reason'] === 'worker_lost' ? 'Worker lost' : 'No answer in time';
}

function text(value: unknown): string {
  return typeof value === 'string' || typeof value === 'number' ? String(value) : '';
}

const CELLS = {
  succeeded: ['●', 'green'],
  accepted: ['◐', 'cyan'],
  submitting: ['◌', 'cyan'],
  ambiguous: ['✗', 'red'],
  queued: ['·', 'dim'],
} as const;

/** One cell per song, and what they come to. */
export function progressLines({ states, breakerState, retryInMs }: Snapshot, { paint }: Screen): string[] {
  const cells = states.map(({ state }) => {
    const [mark, format] = CELLS[state as keyof typeof CELLS] ?? ['?', 'yellow'];
    return paint(format, mark);
  });
  const count = (...wanted: readonly string[]) => states.filter(({ state }) => wanted.includes(state)).length;
  const breaker = breakerState.replace('_', ' ');
  const wait = breakerState === 'open' && retryInMs !== null ? `, ${(retryInMs / 1_000).toFixed(1)} s` : '';
  const counts = [
    `${count('succeeded')} done`,
    `${count('accepted', 'submitting')} running`,
    `${count('ambiguous')} frozen`,
    `${count('queued')} waiting`,
    `breaker ${breaker}${wait}`,
  ];
  return [`  ${cells.join('')}`, fill(`  ${counts.join('   ')}`, WIDTH - 1).trimEnd()];
}
