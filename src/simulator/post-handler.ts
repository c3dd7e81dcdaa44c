import { randomUUID } from 'node:crypto';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { type Authorization, concurrencyRefusal, rateRefusal } from './accounts.ts';
import { type Answer, json, refusal, usualRefusal, validationRefusal } from './answers.ts';
import type { Problems } from './checks.ts';
import { deliver } from './deliver.ts';
import { type Form, promptOf, receiveForm } from './form.ts';
import { checkForm } from './form-rules.ts';
import { type MagicPrompt, readMagicPrompt } from './magic-prompt.ts';
import type { SimulatedOperation } from './operations.ts';
import type { SimulatorSettings } from './options.ts';
import type { Fault } from './script.ts';
import { streamAnswer } from './stream.ts';
import type { Task } from './tasks.ts';
import type { World } from './world.ts';

export interface Surroundings {
  readonly settings: SimulatorSettings;
  readonly world: () => World;
}

/**
 * One paid POST, in the provider's order: key, rate, form, balance, concurrency, charge, answer.
 * The charge comes before the answer, so that an answer can be lost after the money went.
 */
export async function handlePost(
  { settings, world }: Surroundings,
  operation: SimulatedOperation,
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  const here = world();
  const { number, fault: scripted } = here.arrive(operation.name);
  const base = { number, operation: operation.name };
  settings.onEvent?.({ type: 'post', at: settings.clock.now(), ...base });
  const hookFailure = await failureOf(() => settings.onFirstByte?.(base));

  const received = await receiveForm(request, settings.maxUploadMb * 1_000_000);
  if (received.kind === 'aborted') return;
  if (received.kind === 'too_large') {
    await deliver(response, usualRefusal(413), undefined);
    return;
  }
  const { form } = received;
  const now = settings.clock.now();
  const caller = here.accounts.authorize(request.headers.authorization);
  const prompt = promptOf(form);
  const booked = here.books.enter({
    form: form.digest,
    account: caller.account?.name ?? null,
    operation: operation.name,
    prompt,
    at: now,
  });
  const problems: Problems = [];
  const asked = readMagicPrompt(prompt, problems);
  const magic = asked !== undefined && booked.repetition <= asked.times ? asked : undefined;
  const fault = scripted ?? magic?.fault;
  const rateWaitMs = caller.account?.countPost(now);
  const call = { settings, world: here, operation, caller, rateWaitMs, form, magic, problems, now };
  const decision = decide(call, fault);

  // A stream has no task: nothing of it can be found again.
  const task = decision.begun?.order.stream === false ? decision.begun : undefined;
  if (decision.begun !== undefined) booked.charge(task);
  const taskId = task?.id;
  const about = { ...base, form: form.digest, ...(taskId === undefined ? {} : { taskId }) };
  const failure = hookFailure ?? (await failureOf(() => settings.onPost?.({ ...about, prompt })));
  // A refusal of the provider's own is answered as such, but still late or broken if that was asked for.
  const answer = failure === undefined ? decision.answer : refusal(500, 'internal_error', failure);
  const { status, end } = await deliver(response, answer, fault);
  booked.answered(status, end);
  settings.onEvent?.({
    type: 'answer',
    at: settings.clock.now(),
    ...about,
    status,
    ...(end === undefined ? {} : { end }),
    charged: decision.begun !== undefined,
  });
}

interface Decision {
  readonly answer: Answer;
  /** What was charged and is now in production. */
  readonly begun?: Task;
}

interface Call {
  readonly settings: SimulatorSettings;
  readonly world: World;
  readonly operation: SimulatedOperation;
  readonly caller: Authorization;
  /** Set when the window is full. */
  readonly rateWaitMs: number | undefined;
  readonly form: Form;
  readonly magic: MagicPrompt | undefined;
  /** What is wrong with the prompt's wishes. */
  readonly problems: Problems;
  readonly now: number;
}

/** A fault without a charge stands in front of the provider; any other comes after its own decision. */
function decide(call: Call, fault: Fault | undefined): Decision {
  if (fault !== undefined && !fault.charge) return { answer: faultAnswer(fault, undefined) };
  const own = decideAsProvider(call);
  if (fault === undefined || own.begun === undefined) return own;
  return { ...own, answer: faultAnswer(fault, own.answer) };
}

function decideAsProvider(call: Call): Decision {
  const { settings, world, operation, caller, rateWaitMs, form, magic, problems, now } = call;
  if (caller.refusal !== undefined) return { answer: caller.refusal };
  const { account } = caller;
  const { requestsPerMinute, maxConcurrentGenerations: slots } = account.limits;
  if (rateWaitMs !== undefined) {
    return { answer: rateRefusal(requestsPerMinute, rateWaitMs, now, settings.rateRetryAfter) };
  }
  if (problems.length > 0) {
    const loc = ['body', 'prompt'];
    return { answer: validationRefusal(problems.map((msg) => ({ loc, msg, type: 'simulate' }))) };
  }
  const order = checkForm(operation, form);
  if ('status' in order) return { answer: order };
  if (caller.postRefusal !== undefined) return { answer: caller.postRefusal };
  const running = account.running(now);
  if (running >= slots) {
    return { answer: concurrencyRefusal(running, slots, now, settings.concurrencyRetryAfter) };
  }
  const { task, runTimeMs } = world.begin(operation, account, order, form.digest, magic);
  const answer = order.stream
    ? streamAnswer(task, runTimeMs)
    : json(202, { task_id: task.id, status: 'processing' });
  return { answer, begun: task };
}

/** The answer that a fault names; what it leaves open is `own`, or the usual one of its status. */
function faultAnswer(fault: Fault, own: Answer | undefined): Answer {
  const status = fault.status ?? own?.status ?? 502;
  // An acceptance without a charge names a task that nobody will find.
  const acceptance = () => own ?? json(status, { task_id: randomUUID(), status: 'processing' });
  const basis = status < 300 ? acceptance() : usualRefusal(status);
  const { body } = fault;
  const replaced =
    body === undefined
      ? basis
      : typeof body === 'string'
        ? { headers: { 'content-type': textType(body) }, body: Buffer.from(body) }
        : json(status, body);
  return { status, headers: { ...replaced.headers, ...fault.headers }, body: replaced.body };
}

function textType(body: string): string {
  const start = body.trimStart().charAt(0);
  if (start === '<') return 'text/html';
  return start === '{' || start === '[' ? 'application/json' : 'text/plain';
}

/** A hook that throws is the test's own fault: it is said in the answer, and the server goes on. */
async function failureOf(hook: () => void | Promise<void>): Promise<string | undefined> {
  try {
    await hook();
    return undefined;
  } catch (error) {
    return `A hook of the simulator threw: ${error instanceof Error ? error.message : 'not an error'}`;
  }
}
