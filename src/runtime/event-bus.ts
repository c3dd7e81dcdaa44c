import type { Emit, OnetakeEventName, OnetakeEvents } from '../core/events.ts';
import { TroubleLines } from './trouble-lines.ts';

/** Sees every event of a process. What it throws is dropped: a log that fails must not fail a settle. */
export type EventListener = <Name extends OnetakeEventName>(name: Name, event: OnetakeEvents[Name]) => void;

export function eventBus(listeners: readonly EventListener[]): Emit {
  const tell: Emit = (name, event) => {
    for (const listener of listeners) {
      try {
        listener(name, event);
      } catch {
        // Dropped on purpose.
      }
    }
  };
  const lines = new TroubleLines(tell);
  return (name, event) => {
    if (name === 'process:trouble') lines.trouble(event as OnetakeEvents['process:trouble']);
    else if (name === 'process:recovered') lines.recovered(event as OnetakeEvents['process:recovered']);
    else tell(name, event);
  };
}
