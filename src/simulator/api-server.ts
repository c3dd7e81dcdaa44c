import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Account } from './accounts.ts';
import { type Answer, json, refusal, usualRefusal } from './answers.ts';
import { deliver } from './deliver.ts';
import { findOperation, SIMULATED_OPERATION_NAMES } from './operations.ts';
import { handlePost, type Surroundings } from './post-handler.ts';
import { describeTask, statusOf, type Task, type TaskFile } from './tasks.ts';

export interface ApiSurroundings extends Surroundings {
  readonly sign: (task: Task, file: TaskFile) => string;
  readonly control: (request: IncomingMessage, path: string) => Promise<Answer>;
}

const CONTROL = '/__simulator/';
const DAY_MS = 86_400_000;

/** The provider's API, and the simulator's own control beside it. */
export async function handleApi(
  surroundings: ApiSurroundings,
  request: IncomingMessage,
  response: ServerResponse,
  url: URL,
): Promise<void> {
  const operation = findOperation(/^\/v1\/([a-z-]+)$/.exec(url.pathname)?.[1] ?? '');
  if (operation !== undefined && request.method === 'POST') {
    await handlePost(surroundings, operation, request, response);
    return;
  }
  const answer =
    operation !== undefined
      ? usualRefusal(405)
      : url.pathname.startsWith(CONTROL)
        ? await surroundings.control(request, url.pathname.slice(CONTROL.length))
        : readRequest(surroundings, request, url);
  request.resume();
  await deliver(response, answer, undefined);
}

function readRequest(surroundings: ApiSurroundings, request: IncomingMessage, url: URL): Answer {
  const taskId = /^\/v1\/tasks\/([^/]+)$/.exec(url.pathname)?.[1];
  const page = taskId !== undefined ? 'task' : /^\/v1\/account\/(services|usage)$/.exec(url.pathname)?.[1];
  if (page === undefined) return refusal(404, 'not_found', 'Not found, or not offered by the simulator');
  if (request.method !== 'GET') return usualRefusal(405);
  const caller = surroundings.world().accounts.authorize(request.headers.authorization);
  if (caller.refusal !== undefined) return caller.refusal;
  if (page === 'services') return services(surroundings, caller.account);
  if (page === 'usage') return usage(surroundings, caller.account, url.searchParams.get('days'));
  return readTask(surroundings, caller.account, taskId ?? '');
}

/** Another account's task is answered like one that never was. */
function readTask({ settings, world, sign }: ApiSurroundings, account: Account, encoded: string): Answer {
  const task = world().findTask(decode(encoded));
  const at = settings.clock.now();
  if (task === undefined || task.account !== account) {
    settings.onEvent?.({ type: 'poll', at, taskId: encoded.slice(0, 64), httpStatus: 404 });
    return refusal(404, 'not_found', 'Task not found');
  }
  settings.onEvent?.({ type: 'poll', at, taskId: task.id, httpStatus: 200, status: statusOf(task, at) });
  return describeTask(task, at, sign);
}

function decode(segment: string): string {
  try {
    return decodeURIComponent(segment);
  } catch {
    return segment;
  }
}

function services({ settings }: ApiSurroundings, account: Account): Answer {
  return json(200, {
    available_services: SIMULATED_OPERATION_NAMES.map((name) => name.replaceAll('-', '_')),
    rpm_limit: account.limits.requestsPerMinute,
    concurrency_limit: account.limits.maxConcurrentGenerations,
    discount_factor: '1',
    max_upload_size_mb: settings.maxUploadMb,
  });
}

/** Sums only: like the provider's, it can't say which request was charged. */
function usage({ settings }: ApiSurroundings, account: Account, asked: string | null): Answer {
  const days = asked === null ? 30 : Number(asked);
  if (!Number.isInteger(days) || days < 1 || days > 365) {
    return refusal(422, 'validation_error', 'days should be a whole number from 1 to 365');
  }
  const now = settings.clock.now();
  const daily = new Map<string, { requests: number; seconds: number; cost: number }>();
  for (const { at, seconds, cost } of account.usage) {
    if (at < now - days * DAY_MS) continue;
    const date = dateOf(at);
    const day = daily.get(date) ?? { requests: 0, seconds: 0, cost: 0 };
    daily.set(date, { requests: day.requests + 1, seconds: day.seconds + seconds, cost: day.cost + cost });
  }
  const list = Array.from(daily.entries());
  const sum = (member: 'requests' | 'seconds' | 'cost') =>
    list.reduce((total, [, day]) => total + day[member], 0);
  return json(200, {
    summary: {
      total_requests: sum('requests'),
      total_duration_seconds: sum('seconds'),
      total_cost: sum('cost').toFixed(4),
      period_start: dateOf(now - days * DAY_MS),
      period_end: dateOf(now),
    },
    daily: list.map(([date, { requests, seconds, cost }]) => ({
      date,
      requests,
      duration_seconds: seconds,
      cost: cost.toFixed(4),
    })),
  });
}

function dateOf(at: number): string {
  return new Date(at).toISOString().slice(0, 10);
}
