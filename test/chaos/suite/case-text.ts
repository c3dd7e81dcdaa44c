import { type Facts, markerOf } from './checks.ts';

/** Everything that the app, the database and the books say of one order, for the file of a failed run. */
export function caseText(marker: number, { ledger, snapshot }: Facts): string {
  const request = snapshot.requests.find((row) => markerOf(row) === marker);
  const attempts = snapshot.attempts.filter(({ requestId }) => requestId === request?.id);
  const evidence = snapshot.evidence.filter(({ attemptId }) => attempts.some(({ id }) => id === attemptId));
  const actions = snapshot.actions.filter(({ subject }) => subject === request?.id);
  const books = {
    posts: ledger.postsOf(marker),
    tasks: ledger.tasksOf(marker).map(({ id, endsAt }) => ({ id, endsAt })),
  };
  return JSON.stringify({ marker, request, attempts, evidence, actions, books }, null, 2);
}
