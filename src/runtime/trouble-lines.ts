import type { Emit, OnetakeEvents } from '../core/events.ts';

type Trouble = OnetakeEvents['process:trouble'];
type Recovered = OnetakeEvents['process:recovered'];

const QUIET_MS = 60_000;

interface Line {
  toldAt: number;
  /** Since it was last told. */
  untold: number;
}

/**
 * A database that is away troubles every loop, lane and attempt, over and over. Each kind of trouble is told
 * at once, and then once a minute; its end only if its beginning was told.
 */
export class TroubleLines {
  readonly #tell: Emit;
  readonly #now: () => number;
  readonly #lines = new Map<string, Line>();
  readonly #inTrouble = new Set<string>();

  constructor(tell: Emit, now: () => number = () => performance.now()) {
    this.#tell = tell;
    this.#now = now;
  }

  trouble(event: Trouble): void {
    const { role, loop, errorCode } = event;
    const kind = `${role} ${loop} ${errorCode}`;
    const line = this.#lines.get(kind);
    const now = this.#now();
    if (line !== undefined && now < line.toldAt + QUIET_MS) {
      line.untold++;
      return;
    }
    const times = (line?.untold ?? 0) + 1;
    this.#lines.set(kind, { toldAt: now, untold: 0 });
    this.#inTrouble.add(`${role} ${loop}`);
    this.#tell('process:trouble', times === 1 ? event : { ...event, times });
  }

  recovered(event: Recovered): void {
    if (this.#inTrouble.delete(`${event.role} ${event.loop}`)) this.#tell('process:recovered', event);
  }
}
