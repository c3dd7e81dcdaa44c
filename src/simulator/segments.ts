export interface Segment {
  /** Seconds. */
  readonly start: number;
  /** Seconds; only effects have one. */
  readonly end?: number;
  readonly prompt: string;
}

const MAX_SEGMENTS = 30;
const MAX_PROMPT = 200;
const MIN_SPACING_SECONDS = 5;
const LABELS = ['intro', 'verse', 'pre-chorus', 'chorus', 'bridge', 'break', 'silence', 'outro', 'none'];

/** The segments, or the reason why not. Music has labels and no ends; effects are contiguous. */
export function readSegments(
  text: string,
  shape: 'music' | 'effect',
  totalSeconds: number | undefined,
): readonly Segment[] | string {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    return 'segments must be a JSON array';
  }
  if (!Array.isArray(value)) return 'segments must be a JSON array';
  if (value.length < 1 || value.length > MAX_SEGMENTS) return `segments must have 1 to ${MAX_SEGMENTS} items`;
  const segments: Segment[] = [];
  for (const [index, item] of (value as unknown[]).entries()) {
    const reason = readSegment(item, index, shape, segments);
    if (reason !== undefined) return reason;
  }
  const last = segments.at(-1);
  if (shape === 'music' && totalSeconds !== undefined && last !== undefined) {
    if (totalSeconds - last.start < MIN_SPACING_SECONDS) {
      return `the last segment must start at least ${MIN_SPACING_SECONDS} s before duration`;
    }
  }
  return segments;
}

function readSegment(
  item: unknown,
  index: number,
  shape: 'music' | 'effect',
  segments: Segment[],
): string | undefined {
  const at = `segments[${index}]`;
  if (typeof item !== 'object' || item === null) return `${at} must be an object`;
  const { start, end, prompt, label } = item as Record<string, unknown>;
  const previous = segments.at(-1);
  if (typeof start !== 'number' || !Number.isFinite(start)) return `${at}.start must be a number`;
  if (typeof prompt !== 'string' || prompt.length < 1 || prompt.length > MAX_PROMPT) {
    return `${at}.prompt must have 1 to ${MAX_PROMPT} characters`;
  }
  if (previous === undefined && start !== 0) return `${at}.start must be 0`;
  if (shape === 'music') {
    if (label !== undefined && (typeof label !== 'string' || !LABELS.includes(label))) {
      return `${at}.label must be one of ${LABELS.join(', ')}`;
    }
    if (previous !== undefined && start - previous.start < MIN_SPACING_SECONDS) {
      return `${at}.start must be at least ${MIN_SPACING_SECONDS} s after the previous one`;
    }
    segments.push({ start, prompt });
    return undefined;
  }
  if (typeof end !== 'number' || !(end > start)) return `${at}.end must be a number after start`;
  if (previous !== undefined && start !== previous.end) return `${at}.start must be the previous end`;
  segments.push({ start, end, prompt });
  return undefined;
}
