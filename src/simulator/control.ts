import type { IncomingMessage } from 'node:http';
import { OnetakeError } from '../core/errors.ts';
import { type Answer, json, refusal, usualRefusal } from './answers.ts';
import { receiveBytes } from './form.ts';
import type { Ledger } from './ledger.ts';

export interface Controls {
  ledger(): Ledger;
  setScript(rules: unknown): void;
  reset(): void;
}

const MAX_SCRIPT_BYTES = 1_000_000;

/** `GET ledger`, `PUT script`, `POST reset`; needs no key, since the simulator listens on loopback. */
export async function control(controls: Controls, request: IncomingMessage, path: string): Promise<Answer> {
  const asked = `${request.method} ${path}`;
  if (asked === 'GET ledger') return json(200, controls.ledger());
  if (asked === 'POST reset') {
    controls.reset();
    return json(200, { reset: true });
  }
  if (asked !== 'PUT script') {
    return refusal(404, 'not_found', 'Known: GET ledger, PUT script, POST reset');
  }
  const bytes = await receiveBytes(request, MAX_SCRIPT_BYTES);
  if (!Buffer.isBuffer(bytes)) return usualRefusal(413);
  try {
    const rules: unknown = JSON.parse(bytes.toString('utf8'));
    controls.setScript(rules);
    return json(200, { rules: Array.isArray(rules) ? rules.length : 0 });
  } catch (error) {
    if (error instanceof OnetakeError) return refusal(400, error.code, error.message);
    if (error instanceof SyntaxError) return refusal(400, 'invalid_option', 'The script is not valid JSON');
    throw error;
  }
}
