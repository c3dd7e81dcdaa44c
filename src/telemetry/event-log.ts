import { pino } from 'pino';
import type { OnetakeEventName, OnetakeEvents } from '../core/events.ts';

/**
 * Fields that may be printed: ids, names, codes, numbers and instants. A field that is not on this list is
 * not logged, so a prompt, key or URL that slips into an event one day stays out of the log.
 */
const ALLOWED: ReadonlySet<string> = new Set([
  'account',
  'action',
  'actor',
  'attempt',
  'attemptId',
  'attention',
  'breakerName',
  'bytes',
  'cause',
  'certainty',
  'code',
  'count',
  'errorCode',
  'failureCode',
  'failureReason',
  'files',
  'from',
  'generation',
  'health',
  'host',
  'httpStatus',
  'inFlight',
  'index',
  'isProbe',
  'kind',
  'layer',
  'loop',
  'nextState',
  'number',
  'openedAt',
  'operation',
  'outcomeKind',
  'phase',
  'port',
  'previousState',
  'provider',
  'providerTaskId',
  'reason',
  'requestId',
  'rescued',
  'retryAt',
  'role',
  'settings',
  'shadow',
  'times',
  'to',
  'totalBytes',
  'trouble',
  'until',
  'wireOracle',
  'worker',
]);

const WARNINGS: ReadonlySet<OnetakeEventName> = new Set([
  'account:held',
  'asset:failed',
  'asset:lost',
  'configuration:differs',
  'installation:unrecognised',
  'process:trouble',
  'reads:paused',
  'spool:trouble',
  'spool:unreplayed',
  'submission:alert',
  'submission:unsettled',
  'wire:unproven',
  'worker:sick',
]);

/** Money may be at stake until somebody has looked. */
const ERRORS: ReadonlySet<OnetakeEventName> = new Set(['submission:repeated']);

export interface EventLogOptions {
  readonly level: 'debug' | 'info' | 'warn' | 'error' | 'silent';
  readonly destination: { write(line: string): void };
}

/** One JSON line per event; a subscriber like any other. */
export function createEventLog(
  options: EventLogOptions,
): <Name extends OnetakeEventName>(name: Name, event: OnetakeEvents[Name]) => void {
  const log = pino(
    {
      level: options.level,
      base: { pid: process.pid },
      timestamp: pino.stdTimeFunctions.isoTime,
      messageKey: 'event',
      formatters: { level: (level) => ({ level }) },
    },
    options.destination,
  );
  return (name, event) => {
    const level = ERRORS.has(name) ? 'error' : WARNINGS.has(name) ? 'warn' : 'info';
    log[level](permitted(event), name);
  };
}

function permitted(event: object): Record<string, unknown> {
  return Object.fromEntries(
    Object.entries(event).filter(([field, value]) => ALLOWED.has(field) && value !== null),
  );
}
