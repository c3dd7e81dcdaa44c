import type { RequestState } from '../core/generation-request.ts';
import type { UnclaimedTask } from '../postgres/followed-tasks.ts';
import type { Decision } from '../postgres/operator-actions.ts';
import type { AttemptRow, FileRow } from '../postgres/request-overview.ts';
import type { RequestDetails } from '../runtime/client.ts';
import type { Terminal } from './output.ts';
import type { Format } from './style.ts';
import { instant, shortId, size } from './text.ts';

// How one request is shown, to scripts and to people.

export const STATE_FORMAT: Readonly<Record<RequestState, Format | undefined>> = {
  queued: undefined,
  submitting: 'cyan',
  accepted: 'cyan',
  succeeded: 'green',
  failed: 'red',
  rejected: 'red',
  ambiguous: 'yellow',
  cancelled: 'dim',
  expired: 'dim',
};

/** `outcome unknown` is said to every person who sees such a request, wherever they see it. */
export const OUTCOME_UNKNOWN = 'Outcome unknown, possibly charged: do not resubmit it.';

/** The `requests show` object. */
export function requestJson(request: RequestDetails, decisions: readonly Decision[]) {
  return {
    id: request.id,
    state: request.state,
    stateReason: request.stateReason,
    failureReason: request.failureReason,
    failureCode: request.failureCode,
    resultStatus: request.resultStatus,
    waitingFor: request.waitingFor,
    account: request.account,
    operation: request.operation,
    requestKey: request.requestKey,
    providerTaskId: request.providerTaskId,
    charge: request.charge,
    refunded: request.refunded,
    attention: request.attention,
    attempts: request.attempts,
    otherTasks: request.otherTasks,
    files: request.files.map((file) => ({ ...file, location: locationOf(file) })),
    decisions,
    warnings: request.warnings,
    createdAt: request.createdAt,
    settledAt: request.settledAt,
  };
}

/** A file that was not stored has the provider's URL for its place; whoever holds that URL has the file. */
function locationOf(file: FileRow): string | null {
  return file.storedAt === null ? null : file.location;
}

/** What it is beside the others: `audio`, `audio 2`, `drums`, `es`. */
function nameOf({ kind, variant, label }: FileRow): string {
  return `${label ?? kind}${variant === 0 ? '' : ` ${variant + 1}`}`;
}

export function showRequest(
  terminal: Terminal,
  request: RequestDetails,
  decisions: readonly Decision[] = [],
): void {
  if (terminal.json) {
    terminal.value(requestJson(request, decisions));
    return;
  }
  terminal.block([
    ['id', request.id],
    ['state', [request.state, reasonOf(request)].filter((part) => part !== '').join(': ')],
    ['failure code', request.failureCode],
    ['waiting for', request.waitingFor],
    ['charge', CHARGE[request.charge] ?? request.charge],
    ['attention', request.attention?.replaceAll('_', ' ')],
    ['account', request.account],
    ['operation', request.operation],
    ['request key', request.requestKey],
    ['provider task', request.providerTaskId],
    ['created', instant(request.createdAt)],
    ['settled', request.settledAt === null ? null : instant(request.settledAt)],
    ['warnings', request.warnings.map((warning) => warning.replaceAll('_', ' ')).join(', ')],
  ]);
  if (request.attempts.length > 0) {
    terminal.print('');
    terminal.table<AttemptRow>(request.attempts, [
      { title: 'attempt', value: (row) => `${row.attempt}${row.isProbe ? ' probe' : ''}` },
      { title: 'started', value: (row) => instant(row.startedAt) },
      { title: 'phase', value: (row) => row.phase?.replaceAll('_', ' ') ?? null },
      { title: 'answer', value: answerOf, flexible: 'wrap' },
      { title: 'bought', value: (row) => row.certainty ?? 'in flight' },
    ]);
  }
  if (decisions.length > 0) {
    terminal.print('');
    terminal.table<Decision>(decisions, [
      { title: 'decided', value: (row) => instant(row.at) },
      { title: 'what', value: (row) => row.action.replaceAll('_', ' ') },
      { title: 'by', value: (row) => row.actor, flexible: 'wrap' },
      { title: 'because', value: (row) => row.reason, flexible: 'wrap' },
    ]);
  }
  if (request.otherTasks.length > 0) {
    terminal.print('', terminal.paint('yellow', 'Accepted as well, and paid for unless refunded:'));
    terminal.table<UnclaimedTask>(request.otherTasks, [
      { title: 'provider task', value: (row) => row.providerTaskId, flexible: 'wrap' },
      { title: 'attempt', value: (row) => row.attempt },
      { title: 'status', value: (row) => row.status },
      { title: 'refunded', value: refundOf },
    ]);
  }
  if (request.files.length > 0) {
    terminal.print('');
    terminal.table<FileRow>(request.files, [
      { title: 'file', value: nameOf },
      { title: 'size', value: (row) => (row.bytes === null ? null : size(row.bytes)), align: 'right' },
      { title: 'type', value: (row) => row.contentType, flexible: true },
      { title: 'location', value: (row) => locationOf(row) ?? 'at the provider', flexible: 'wrap' },
    ]);
  }
  if (request.state === 'ambiguous') {
    terminal.print('', terminal.paint('yellow', OUTCOME_UNKNOWN));
    terminal.note(
      `Look it up at the provider, then: onetake ambiguous resolve ${shortId(request.id)} --help`,
    );
  }
  if (request.attention !== null) {
    terminal.note(`Seen to it: onetake requests acknowledge ${shortId(request.id)} --reason '…'`);
  }
  if (request.document !== null && request.files.length === 0) {
    terminal.note('Its result is no file: client.get(id) of the library has it, as document.');
  }
  if (request.files.some((file) => file.storedAt === null)) {
    terminal.note('The files are still at the provider. client.get(id) of the library has their URLs.');
  }
}

function answerOf({ httpStatus, errorCode, streamEnd }: AttemptRow): string | number | null {
  // In words, which a narrow column can break between.
  const answer = httpStatus ?? errorCode?.replaceAll('_', ' ') ?? null;
  return streamEnd === null ? answer : `${answer}, ${streamEnd.replaceAll('_', ' ')}`;
}

export function refundOf(
  row: Pick<UnclaimedTask, 'refunded'> &
    ({ readonly followedUntil: Date | null } | { readonly watchedUntil: Date | null }),
): string {
  const { refunded } = row;
  if (refunded === true) return 'yes';
  if (('followedUntil' in row ? row.followedUntil : row.watchedUntil) !== null) return 'not yet';
  return refunded === null ? 'unknown' : 'no';
}

const CHARGE: Readonly<Record<string, string>> = {
  none: 'none',
  possible: 'possible: the outcome of a POST is unknown',
  charged: 'charged',
  refunded: 'refunded',
};

/** Where the name alone says little. */
const REASON: Readonly<Record<string, string>> = {
  unsent_own_doing: 'kept back by its worker, nothing was sent',
};

export function reasonOf(request: {
  readonly stateReason: string | null;
  readonly failureReason: string | null;
  readonly resultStatus: string | null;
}): string {
  const reason = request.failureReason ?? request.resultStatus ?? request.stateReason ?? '';
  return REASON[reason] ?? reason.replaceAll('_', ' ');
}
