import { randomOf } from '../random.ts';

/** What the provider does with one POST that has arrived whole, by name. */
export const POST_BEHAVIOURS = {
  // As it should be.
  accept: 60,
  accept_slowly: 6,
  accept_in_pieces: 2,
  accept_after_103: 1,
  // No answer, or none in time.
  read_then_close: 1.5,
  read_then_reset: 1.5,
  never_answer: 1.2,
  answer_after_deadline: 1,
  answer_after_lease: 0.8,
  slow_headers: 0.8,
  garbage: 0.8,
  // A 2xx that names no task of this request.
  cut_202: 0.8,
  empty_202: 0.6,
  html_202: 0.6,
  no_id_202: 0.6,
  null_id_202: 0.3,
  number_id_202: 0.3,
  object_id_202: 0.3,
  long_id_202: 0.3,
  control_id_202: 0.3,
  endless_202: 0.4,
  gzip_cut_202: 0.3,
  foreign_id_202: 0.6,
  // Statuses.
  status_500: 1,
  status_502: 1.5,
  status_503: 1.5,
  status_504: 1,
  endless_500: 0.4,
  status_520: 0.5,
  status_524: 0.5,
  status_408: 0.3,
  status_418: 0.3,
  status_301: 0.4,
  status_307: 0.4,
  rate_429: 0.15,
  concurrency_429: 1,
  status_401: 0.25,
  status_402: 0.25,
  status_403: 0.25,
  status_400: 0.5,
  status_413: 0.3,
  status_422: 0.6,
} as const;

export type PostBehaviour = keyof typeof POST_BEHAVIOURS;
export const POST_BEHAVIOUR_NAMES = Object.keys(POST_BEHAVIOURS) as PostBehaviour[];

/** How often the provider charges all the same, where its answer doesn't say that it did. */
const CHARGE_ANYWAY = 0.5;
const ALWAYS_CHARGED = /^(accept|answer_after|slow_headers|.*_202$)/;
const NEVER_CHARGED = /^(rate_429|concurrency_429|status_4(00|01|02|03|13|22))$/;
/** Answers that say definitely: nothing was created, nothing charged. */
export const DEFINITE_REFUSALS: ReadonlySet<number> = new Set([400, 401, 402, 403, 413, 422, 429]);

/** For a while all POSTs meet the same, as in an outage. */
export interface Weather {
  readonly behaviour: PostBehaviour | 'reset_on_connect' | null;
  /** How many of the POSTs meet it. */
  readonly share: number;
}

export const CALM: Weather = { behaviour: null, share: 0 };

export interface PostPlan {
  readonly behaviour: PostBehaviour;
  readonly charged: boolean;
  /** For behaviours that take their time, 0 to 1. */
  readonly pace: number;
  readonly runMs: number;
  readonly fails: boolean;
}

/** From the seed, the request and how often it has been posted alone, so that a replay meets the same. */
export function planPost(
  seed: string,
  marker: number,
  nth: number,
  weather: Weather,
  healed: boolean,
): PostPlan {
  const random = randomOf(seed, 'post', marker, nth);
  const usual = random.weighted(POST_BEHAVIOURS);
  const inWeather = random.chance(weather.share);
  const chargedAnyway = random.chance(CHARGE_ANYWAY);
  const pace = random.next();
  const runMs = random.between(300, 9_000);
  const fails = random.chance(0.06);
  const { behaviour: worst } = weather;
  const storm = inWeather && worst !== null && worst !== 'reset_on_connect' ? worst : usual;
  const behaviour = healed ? 'accept' : storm;
  const charged = ALWAYS_CHARGED.test(behaviour) || (chargedAnyway && !NEVER_CHARGED.test(behaviour));
  return { behaviour, charged, pace, runMs, fails };
}

/** What it does with an upload whose body has begun. */
export const UPLOAD_BEHAVIOURS = {
  read: 78,
  cut: 7,
  stall: 4,
  refuse_early: 5,
  accept_early: 6,
} as const;

export type UploadBehaviour = keyof typeof UPLOAD_BEHAVIOURS;

export function planUpload(seed: string, marker: number, nth: number, healed: boolean): UploadBehaviour {
  return healed ? 'read' : randomOf(seed, 'upload', marker, nth).weighted(UPLOAD_BEHAVIOURS);
}

export const GET_BEHAVIOURS = {
  answer: 88,
  status_500: 1.5,
  html_502: 1,
  not_found: 1,
  unauthorized: 0.5,
  too_many: 0.5,
  reset: 1.5,
  cut: 1,
  garbage: 1,
  empty: 1,
  never: 0.3,
} as const;

export type GetBehaviour = keyof typeof GET_BEHAVIOURS;

export function planGet(seed: string, task: string, nth: number, healed: boolean): GetBehaviour {
  return healed ? 'answer' : randomOf(seed, 'get', task, nth).weighted(GET_BEHAVIOURS);
}

export const FILE_BEHAVIOURS = { answer: 90, expired: 3, reset: 2, cut: 2, html: 1, status_503: 2 } as const;

export type FileBehaviour = keyof typeof FILE_BEHAVIOURS;

export function planFile(seed: string, task: string, nth: number, healed: boolean): FileBehaviour {
  return healed ? 'answer' : randomOf(seed, 'file', task, nth).weighted(FILE_BEHAVIOURS);
}

/** Chosen before a byte is read: nobody knows yet whose connection it is. */
export function resetsOnConnect(
  seed: string,
  connection: number,
  weather: Weather,
  healed: boolean,
): boolean {
  if (healed) return false;
  const share = weather.behaviour === 'reset_on_connect' ? weather.share : 0.01;
  return randomOf(seed, 'connection', connection).chance(share);
}
