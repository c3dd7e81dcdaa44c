/** Node arguments that move every clock that JavaScript can read by `ms`, before anything of ours is loaded. */
export function shiftedBy(ms: number): string[] {
  const shift = `const RealDate = Date;
globalThis.Date = class extends RealDate {
  constructor(...args) { if (args.length === 0) super(RealDate.now() + ${ms}); else super(...args); }
  static now() { return RealDate.now() + ${ms}; }
};`;
  return ['--import', `data:text/javascript,${encodeURIComponent(shift)}`];
}
