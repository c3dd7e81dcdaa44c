/**
 * Why a database is not taken for the one that was confirmed: it is a copy, it went back in time, or somebody is
 * freezing it. Spelled as `onetake.check_installation` gives them.
 */
export const INSTALLATION_TROUBLES = [
  'unconfirmed',
  'another_cluster',
  'another_database',
  'restored_tables',
  'another_timeline',
  'stepped_back',
  'intent_lost',
  'freezing',
] as const;

export type InstallationTrouble = (typeof INSTALLATION_TROUBLES)[number];

/** The database has lost what it had confirmed to this process. */
export type InstallationLoss = Extract<InstallationTrouble, 'stepped_back' | 'intent_lost'>;

/** What one look at the database showed. */
export interface InstallationReading {
  /** Null: there is no row. */
  readonly installation: string | null;
  readonly revision: number | null;
  /** How far its WAL is flushed, as in `16/B374D848`; null when that can't be compared. */
  readonly flushed: string | null;
  readonly trouble: InstallationTrouble | null;
  readonly loss: InstallationLoss | null;
}

/** What a process remembers of the database, to hold against it later. */
export interface InstallationMark {
  readonly installation: string;
  readonly revision: number;
  readonly flushed: string | null;
  /** The last attempt that the database confirmed to this process. */
  readonly attemptId: string | null;
}

/** Remembers the furthest that was seen. What is in trouble is not remembered, and a new confirmation starts anew. */
export function markAfter(
  mark: InstallationMark | null,
  reading: InstallationReading,
): InstallationMark | null {
  const { installation, revision, flushed, trouble } = reading;
  if (trouble !== null || installation === null || revision === null) return mark;
  if (mark === null || mark.installation !== installation || mark.revision !== revision) {
    return { installation, revision, flushed, attemptId: null };
  }
  return { ...mark, flushed: further(mark.flushed, flushed) };
}

function further(a: string | null, b: string | null): string | null {
  if (a === null || b === null) return a ?? b;
  return walPosition(a) >= walPosition(b) ? a : b;
}

/** A `pg_lsn` in bytes: two halves of 32 bits, in hexadecimal. */
function walPosition(lsn: string): bigint {
  const [high = '', low = ''] = lsn.split('/');
  return (BigInt(`0x${high}`) << 32n) | BigInt(`0x${low}`);
}

/** What each trouble means to a person. */
export const INSTALLATION_TROUBLE_MEANS: Readonly<Record<InstallationTrouble, string>> = {
  unconfirmed: 'nobody has confirmed this database',
  another_cluster: 'this is a copy: it lives in another PostgreSQL cluster than the one that was confirmed',
  another_database: 'this is a copy: another database of the same cluster was confirmed',
  restored_tables: 'its tables were restored from a dump',
  another_timeline: 'it was restored to an earlier moment, or a standby took over',
  stepped_back: 'it was put back to an earlier state: what it had on disk is not there any more',
  intent_lost: 'it has lost a submission that it had confirmed',
  freezing: 'a freeze was begun and is not finished',
};
