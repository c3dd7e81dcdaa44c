import type { Emit, OnetakeEventName, OnetakeEvents } from '../core/events.ts';

/** Sees every event of a process. What it throws is dropped: a log that fails must not fail a settle. */
export type EventListener = <Name extends OnetakeEventName>(name: Name, event: OnetakeEvents[Name]) => void;

export function eventBus(listeners: readonly EventListener[]): Emit {
  return (name, event) => {
    for (const listener of listeners) {
      try {
        listener(name, event);
      } catch {
        // Dropped on purpose.
      }
    }
  };
}
