import {
  describe,
  type Problems,
  present,
  readBoolean,
  readChoice,
  readNumber,
  readObject,
  refuseProblems,
} from './checks.ts';
import { SIMULATED_OPERATION_NAMES } from './operations.ts';

/**
 * How the connection of one POST ends when it doesn't end well. Without a `status` nothing is answered
 * first; with one, the status line and headers go out before.
 *
 * | `end` | on the wire |
 * | --- | --- |
 * | `reset` | RST |
 * | `close` | FIN |
 * | `hang` | silence; the socket stays open until the client leaves or the simulator stops |
 * | `cut` | headers and half of the body, then the socket is destroyed (also without a `status`) |
 */
export type FaultEnd = 'reset' | 'close' | 'hang' | 'cut';

/** What a matching POST meets instead of the plain answer. */
export interface ScriptedResponse {
  /** 200 to 599. Absent: the answer that the request deserves. */
  readonly status?: number;
  /** Added to, or replacing, the answer's headers; names in any case. */
  readonly headers?: Readonly<Record<string, string>>;
  /** Text is sent as it is, anything else as JSON. Absent: the usual body for that status. */
  readonly body?: unknown;
  /** The answer leaves so much later; a charge is made before the delay. 0 to 3,600,000. */
  readonly delayMs?: number;
  readonly end?: FaultEnd;
  /**
   * Whether the money went, and a task was created, before the fault. Default: false for a status of 400
   * and above, else true. False stands for something in front of the provider: nothing is checked,
   * nothing created. True stands for the provider itself: its own refusals (a bad form, a limit, a bad
   * key) come first, and are then what is answered.
   */
  readonly charge?: boolean;
}

/** One rule; the first that matches decides. All conditions given must hold. */
export interface ScriptRule {
  /** Only this operation; `posts` and `everyNth` then count its POSTs alone. */
  readonly operation?: string;
  /** The first and last POST, counted from 1, both included. */
  readonly posts?: readonly [from: number, to: number];
  /** Every nth POST. */
  readonly everyNth?: number;
  /** Milliseconds since the start or the last reset; `to` itself is outside. */
  readonly from?: number;
  readonly to?: number;
  /** At most so many matches. */
  readonly times?: number;
  readonly respond: ScriptedResponse;
}

/** What happens to one POST. */
export interface Fault extends ScriptedResponse {
  readonly delayMs: number;
  readonly charge: boolean;
}

/** Where a POST stands in the counts that rules look at. */
export interface PostPosition {
  readonly operation: string;
  /** From 1, over all operations. */
  readonly number: number;
  /** From 1, within its operation. */
  readonly operationNumber: number;
  readonly elapsedMs: number;
}

const FAULT_ENDS: readonly FaultEnd[] = ['reset', 'close', 'hang', 'cut'];
const RULE_KEYS = ['operation', 'posts', 'everyNth', 'from', 'to', 'times', 'respond'];
const RESPONSE_KEYS = ['status', 'headers', 'body', 'delayMs', 'end', 'charge'];
const COUNT = { min: 1, max: 1_000_000_000 };
const ELAPSED = { min: 0, max: 1_000_000_000_000 };
/** Framing belongs to the server; `end: 'cut'` is the way to a body that is too short. */
const FRAMING_HEADERS = ['content-length', 'transfer-encoding'];

/**
 * A script from JSON or from code.
 * @throws OnetakeError `invalid_option` that names every problem by its path, as in `script[2].respond.end`.
 */
export function parseScript(value: unknown, path = 'script'): readonly ScriptRule[] {
  const problems: Problems = [];
  const rules = readScript(value, path, problems);
  refuseProblems(problems, 'The script is not valid');
  return rules;
}

export function readScript(value: unknown, path: string, problems: Problems): readonly ScriptRule[] {
  if (!Array.isArray(value)) {
    problems.push(`${path}: expected a list of rules, got ${describe(value)}.`);
    return [];
  }
  return value.map((rule: unknown, index) => readRule(rule, `${path}[${index}]`, problems));
}

function readRule(value: unknown, path: string, problems: Problems): ScriptRule {
  const rule = readObject(value, path, RULE_KEYS, problems);
  if (rule === undefined) return { respond: {} };
  if (rule['respond'] === undefined) problems.push(`${path}.respond: missing.`);
  const from = readNumber(rule['from'], `${path}.from`, ELAPSED, problems);
  const to = readNumber(rule['to'], `${path}.to`, ELAPSED, problems);
  if (from !== undefined && to !== undefined && from >= to) {
    problems.push(`${path}.to: expected more than from.`);
  }
  return present({
    operation: readChoice(rule['operation'], `${path}.operation`, SIMULATED_OPERATION_NAMES, problems),
    posts: readPosts(rule['posts'], `${path}.posts`, problems),
    everyNth: readNumber(rule['everyNth'], `${path}.everyNth`, COUNT, problems),
    from,
    to,
    times: readNumber(rule['times'], `${path}.times`, COUNT, problems),
    respond: rule['respond'] === undefined ? {} : readResponse(rule['respond'], `${path}.respond`, problems),
  });
}

function readPosts(value: unknown, path: string, problems: Problems): readonly [number, number] | undefined {
  if (value === undefined) return undefined;
  if (!Array.isArray(value) || value.length !== 2) {
    problems.push(`${path}: expected [first, last], got ${describe(value)}.`);
    return undefined;
  }
  const first = readNumber(value[0] ?? null, `${path}[0]`, COUNT, problems);
  const last = readNumber(value[1] ?? null, `${path}[1]`, COUNT, problems);
  if (first === undefined || last === undefined) return undefined;
  if (first > last) problems.push(`${path}: expected the first POST not to come after the last.`);
  return [first, last];
}

export function readResponse(value: unknown, path: string, problems: Problems): ScriptedResponse {
  const response = readObject(value, path, RESPONSE_KEYS, problems);
  if (response === undefined) return {};
  const parsed: ScriptedResponse = present({
    status: readNumber(response['status'], `${path}.status`, { min: 200, max: 599 }, problems),
    headers: readHeaders(response['headers'], `${path}.headers`, problems),
    body: response['body'],
    delayMs: readNumber(response['delayMs'], `${path}.delayMs`, { min: 0, max: 3_600_000 }, problems),
    end: readChoice(response['end'], `${path}.end`, FAULT_ENDS, problems),
    charge: readBoolean(response['charge'], `${path}.charge`, problems),
  });
  const answers = response['status'] !== undefined;
  const ends = response['end'] !== undefined && response['end'] !== 'cut';
  if (parsed.charge === false && !answers && !ends) {
    problems.push(`${path}.charge: false needs a status, or an end other than cut: what is to be seen?`);
  }
  return parsed;
}

function readHeaders(
  value: unknown,
  path: string,
  problems: Problems,
): Readonly<Record<string, string>> | undefined {
  if (value === undefined) return undefined;
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    problems.push(`${path}: expected an object of texts, got ${describe(value)}.`);
    return undefined;
  }
  const headers: Record<string, string> = {};
  for (const [name, text] of Object.entries(value)) {
    const lower = name.toLowerCase();
    if (!/^[!#$%&'*+.^_`|~0-9a-z-]+$/.test(lower)) problems.push(`${path}: a header name is not valid.`);
    else if (FRAMING_HEADERS.includes(lower)) problems.push(`${path}.${lower}: is set by the server.`);
    else if (typeof text !== 'string' || !/^[\t\x20-\x7e\x80-\xff]*$/.test(text)) {
      problems.push(`${path}.${lower}: expected one line of text, got ${describe(text)}.`);
    } else headers[lower] = text;
  }
  return headers;
}

export function toFault(response: ScriptedResponse): Fault {
  const charge = response.charge ?? (response.status === undefined || response.status < 400);
  return { ...response, delayMs: response.delayMs ?? 0, charge };
}

/** The rules in force, and how often each has matched. */
export class Script {
  readonly #rules: readonly ScriptRule[];
  readonly #uses: number[];

  constructor(rules: readonly ScriptRule[]) {
    this.#rules = rules;
    this.#uses = rules.map(() => 0);
  }

  /** The fault for this POST, which counts as one of the rule's `times`. */
  take(position: PostPosition): Fault | undefined {
    for (const [index, rule] of this.#rules.entries()) {
      const uses = this.#uses[index] ?? 0;
      if (uses >= (rule.times ?? Number.POSITIVE_INFINITY) || !matches(rule, position)) continue;
      this.#uses[index] = uses + 1;
      return toFault(rule.respond);
    }
    return undefined;
  }
}

function matches(rule: ScriptRule, position: PostPosition): boolean {
  if (rule.operation !== undefined && rule.operation !== position.operation) return false;
  const number = rule.operation === undefined ? position.number : position.operationNumber;
  if (rule.posts !== undefined && (number < rule.posts[0] || number > rule.posts[1])) return false;
  if (rule.everyNth !== undefined && number % rule.everyNth !== 0) return false;
  if (rule.from !== undefined && position.elapsedMs < rule.from) return false;
  return rule.to === undefined || position.elapsedMs < rule.to;
}
