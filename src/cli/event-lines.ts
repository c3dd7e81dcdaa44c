import type { OnetakeEventName, OnetakeEvents } from '../core/events.ts';
import type { EventListener } from '../runtime/event-bus.ts';
import { createEventLog } from '../telemetry/event-log.ts';
import type { Terminal } from './output.ts';
import type { Format } from './style.ts';
import { shortId, size } from './text.ts';

/** What a person reads of an event; undefined for one that tells a person nothing. */
export interface EventLine {
  readonly text: string;
  readonly format?: Format;
}

type Describe = {
  readonly [Name in OnetakeEventName]?: (event: OnetakeEvents[Name]) => EventLine | undefined;
};

const answerOf = (event: { httpStatus: number | null; errorCode: string | null }) =>
  event.httpStatus ?? event.errorCode ?? 'no answer';

const UNREPLAYED = {
  damaged: 'the file is damaged, and was set aside',
  newer: 'the file is of a newer release',
  unknown_request: 'the database knows no such request',
} as const;

const DESCRIBE: Describe = {
  'process:started': ({ role }) => ({ text: `${role} started` }),
  'process:stopping': ({ role, inFlight }) => ({
    text: inFlight === 0 ? `${role} stopping` : `${role} stopping, after ${inFlight} in flight`,
  }),
  'process:stopped': ({ role }) => ({ text: `${role} stopped` }),
  'process:observed': ({ host, port }) => ({
    text: `/metrics, /healthz and /readyz on http://${host}:${port}`,
    format: 'dim',
  }),
  'process:trouble': ({ role, loop, errorCode, times = 1 }) => ({
    text: `${role}: trouble in ${loop} (${errorCode}${times === 1 ? '' : `, ${times} times`}), goes on`,
    format: 'yellow',
  }),
  'process:recovered': ({ role, loop }) => ({ text: `${role}: ${loop} works again`, format: 'green' }),
  'process:polling': ({ role }) => ({
    text: `${role}: no LISTEN through this pooler, looks for work each second instead`,
    format: 'dim',
  }),
  'worker:sick': ({ provider }) => ({
    text: `can't reach ${provider}: this worker submits nothing there until it gets through`,
    format: 'red',
  }),
  'worker:recovered': ({ provider }) => ({ text: `reaches ${provider} again`, format: 'green' }),
  'wire:unproven': ({ provider, wireOracle }) => ({
    text: `${provider}: the wire oracle is ${words(wireOracle)}; fewer failures count as unsent`,
    format: 'yellow',
  }),
  'configuration:differs': ({ settings }) => ({
    text: `this configuration differs from the database, which rules: ${settings}`,
    format: 'yellow',
  }),
  'installation:unrecognised': ({ trouble }) => ({
    text: `submits nothing: this is not the database that was confirmed (${words(trouble)}); see onetake recover`,
    format: 'red',
  }),
  'installation:recognised': () => ({ text: 'this database is confirmed: submits again', format: 'green' }),
  'submission:admitted': ({ requestId, attempt, isProbe }) => ({
    text: `${shortId(requestId)}  submitting${isProbe ? ' as the probe' : ''}${attempt === 1 ? '' : `, attempt ${attempt}`}`,
  }),
  'submission:settled': (event) => settled(event),
  'submission:alert': ({ requestId, reason }) => ({
    text:
      reason === 'intent_lost'
        ? `${shortId(requestId)}  the database had lost an attempt, which is written again`
        : `${shortId(requestId)}  the provider broke its contract: ${words(reason)}`,
    format: 'red',
  }),
  'submission:repeated': ({ requestId }) => ({
    text: `${shortId(requestId)}  the HTTP client tried to send it twice; the second was stopped`,
    format: 'red',
  }),
  'submission:unsettled': ({ requestId, errorCode }) => ({
    text: `${shortId(requestId)}  its outcome can't be stored yet (${errorCode})`,
    format: 'red',
  }),
  'spool:trouble': ({ settings, action, errorCode }) => ({
    text: `${settings}: can't ${action} there (${errorCode}); outcomes wait in memory alone`,
    format: 'red',
  }),
  'spool:unreplayed': ({ attemptId, reason }) => ({
    text: `${shortId(attemptId)}  a spooled outcome can't be recorded: ${UNREPLAYED[reason]}`,
    format: 'red',
  }),
  'breaker:transition': ({ breakerName, previousState, nextState, cause, retryAt }) => ({
    text:
      `breaker ${breakerName}: ${words(previousState)} -> ${words(nextState)} (${words(cause)})` +
      (retryAt === null ? '' : `, next probe at ${timeOf(retryAt)}`),
    format: nextState === 'closed' ? 'green' : nextState === 'open' ? 'red' : 'yellow',
  }),
  'account:held': ({ account, operation, kind }) => ({
    text: `account ${account} held${operation === null ? '' : ` for ${operation}`}: ${words(kind)}`,
    format: 'red',
  }),
  'account:released': ({ account }) => ({
    text: `account ${account}: its key is accepted again; one request goes first`,
    format: 'green',
  }),
  'account:paused': ({ account, kind, until }) => ({
    text: `account ${account} paused until ${timeOf(until)} (${kind})`,
    format: 'yellow',
  }),
  'reads:paused': ({ account, reason }) => ({
    text: `account ${account}: its tasks can't be read (${words(reason)}), one is tried at a time`,
    format: 'yellow',
  }),
  'reads:resumed': ({ account }) => ({
    text: `account ${account}: its tasks are read again`,
    format: 'green',
  }),
  'task:unreadable': ({ requestId, ...event }) => ({
    text: `${shortId(requestId)}  can't read its task (${answerOf(event)}), will again`,
    format: 'yellow',
  }),
  'task:finished': ({ requestId, to, failureCode, files }) => ({
    text: `${shortId(requestId)}  ${to}${to === 'succeeded' ? `, ${files} file${files === 1 ? '' : 's'}` : failureCode === null ? '' : ` (${failureCode})`}`,
    format: to === 'succeeded' ? 'green' : 'red',
  }),
  'stream:ended': ({ requestId, to, code, bytes }) => ({
    text: `${shortId(requestId)}  ${to}${to === 'succeeded' ? `, ${size(bytes)} streamed` : `: its stream ended (${words(code)})`}`,
    format: to === 'succeeded' ? 'green' : 'red',
  }),
  'task:refunded': ({ requestId }) => ({ text: `${shortId(requestId)}  refunded` }),
  'asset:failed': ({ requestId, errorCode }) => ({
    text: `${shortId(requestId)}  can't store a file (${errorCode}), will again`,
    format: 'yellow',
  }),
  'asset:progress': ({ requestId, bytes, totalBytes }) => ({
    text: `${shortId(requestId)}  ${size(bytes)}${totalBytes === null ? '' : ` of ${size(totalBytes)}`} of a file`,
    format: 'dim',
  }),
  'asset:lost': ({ requestId, errorCode }) => ({
    text: `${shortId(requestId)}  its files can't be had any more (${words(errorCode)}); it was paid for`,
    format: 'red',
  }),
  'rescue:done': ({ rescued, count }) => ({ text: `rescued ${count}: ${words(rescued)}` }),
  'request:expired': ({ requestId }) => ({ text: `${shortId(requestId)}  expired`, format: 'dim' }),
};

function settled(event: OnetakeEvents['submission:settled']): EventLine {
  const id = shortId(event.requestId);
  switch (event.to) {
    case 'accepted':
      return { text: `${id}  accepted` };
    case 'ambiguous':
      return {
        text: `${id}  ambiguous (${answerOf(event)}): outcome unknown, possibly charged, do not resubmit`,
        format: 'yellow',
      };
    case 'queued':
      return { text: `${id}  back in the queue (${answerOf(event)}): nothing was bought` };
    default:
      return { text: `${id}  ${event.to} (${answerOf(event)})`, format: 'red' };
  }
}

function words(name: string): string {
  return name.replaceAll('_', ' ');
}

function timeOf(at: Date): string {
  return `${at.toISOString().slice(11, 19)}Z`;
}

export function lineOf<Name extends OnetakeEventName>(
  name: Name,
  event: OnetakeEvents[Name],
): EventLine | undefined {
  return DESCRIBE[name]?.(event);
}

/** One JSON event per line for a program, short lines for a person. */
export function eventPrinter(terminal: Terminal): EventListener {
  if (!terminal.isInteractive || terminal.json) {
    return createEventLog({
      level: 'info',
      destination: { write: (line) => terminal.print(line.replace(/\n$/, '')) },
    });
  }
  return (name, event) => {
    const line = lineOf(name, event);
    if (line !== undefined) printLine(terminal, line);
  };
}

export function printLine(terminal: Terminal, { text, format }: EventLine): void {
  const painted = format === undefined ? text : terminal.paint(format, text);
  terminal.print(`${terminal.paint('dim', timeOf(new Date()))}  ${painted}`);
}
