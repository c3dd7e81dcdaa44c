const TAIL_LINES = 15;

/** Why the demo can't go on, for the person who watches it. */
export class DemoFailure extends Error {
  /** The last lines of a child's stderr; empty when it wasn't a child. */
  readonly stderrTail: string;

  constructor(message: string, stderr = '') {
    super(message);
    this.name = 'DemoFailure';
    this.stderrTail = stderr.trimEnd().split('\n').slice(-TAIL_LINES).join('\n');
  }
}
