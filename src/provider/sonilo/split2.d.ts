// As much of the package as is used here; it brings no types of its own.
declare module 'split2' {
  import type { Transform } from 'node:stream';

  /** Each line without its end goes through `mapper`; what that returns undefined for is not passed on. */
  function split(mapper: (line: string) => unknown): Transform;
  export = split;
}
