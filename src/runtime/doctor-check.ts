/** One finding of `onetake doctor`. Names settings, variables and codes; never a key, an address or a password. */
export interface Check {
  readonly name: string;
  readonly status: 'ok' | 'warn' | 'fail';
  readonly detail: string;
  /** What to do; null when there is nothing to do. */
  readonly hint: string | null;
}

export const ok = (name: string, detail: string): Check => ({ name, status: 'ok', detail, hint: null });
export const warn = (name: string, detail: string, hint: string): Check => ({
  name,
  status: 'warn',
  detail,
  hint,
});
export const fail = (name: string, detail: string, hint: string): Check => ({
  name,
  status: 'fail',
  detail,
  hint,
});
