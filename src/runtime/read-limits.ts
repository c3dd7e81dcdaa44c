import { FIELD_LIMITS, type FieldLimit, type LimitSetting } from '../core/field-limits.ts';
import type { OperationName } from '../core/operations.ts';
import { describe, type Section } from './configuration-section.ts';

/** What may be said of a limit of each kind. */
const KEYS = {
  text: ['maxLength'],
  number: ['min', 'max'],
  choice: ['values'],
  media: ['maxBytes', 'maxSeconds', 'containers', 'codecs'],
  segments: ['maxCount', 'maxPromptLength', 'minSpacing', 'labels', 'maxLength'],
} as const satisfies Record<FieldLimit['kind'], readonly string[]>;

const MILLION = 1_000_000;
const NUMBERS = {
  maxLength: { min: 1, max: MILLION },
  maxBytes: { min: 1, max: 1_099_511_627_776 },
  maxSeconds: { min: 1, max: MILLION, fraction: true },
  maxCount: { min: 1, max: 1_000 },
  maxPromptLength: { min: 1, max: MILLION },
  minSpacing: { min: 0, max: MILLION, fraction: true },
  min: { min: 0, max: MILLION, fraction: true },
  max: { min: 0, max: MILLION, fraction: true },
} as const;

/** What may be fed to the same door again: null and the kind of a limit are no settings. */
export function readLimits(operation: Section, name: OperationName): Readonly<Record<string, LimitSetting>> {
  const known = FIELD_LIMITS[name];
  const section = operation.child('limits', Object.keys(known));
  const settings: Record<string, LimitSetting> = Object.create(null);
  for (const [field, limit] of Object.entries(known)) {
    settings[field] =
      section.get(field) === false ? false : readLimit(section.child(field, KEYS[limit.kind]), limit);
  }
  return settings;
}

function readLimit(section: Section, limit: FieldLimit): LimitSetting {
  const number = (key: keyof typeof NUMBERS, fallback: number): number =>
    section.number(key, { ...NUMBERS[key], default: fallback });
  switch (limit.kind) {
    case 'text':
      return { maxLength: number('maxLength', limit.maxLength) };
    case 'number': {
      const range = { min: number('min', limit.min), max: number('max', limit.max) };
      section.requireRising(range, true);
      return range;
    }
    case 'choice':
      return { values: readTexts(section, 'values', limit.values) };
    case 'media':
      return {
        maxBytes: number('maxBytes', limit.maxBytes),
        maxSeconds: number('maxSeconds', limit.maxSeconds),
        ...(limit.containers === undefined
          ? {}
          : { containers: readTexts(section, 'containers', limit.containers) }),
        ...(limit.codecs === undefined ? {} : { codecs: readTexts(section, 'codecs', limit.codecs) }),
      };
    case 'segments':
      return {
        maxCount: number('maxCount', limit.maxCount),
        maxPromptLength: number('maxPromptLength', limit.maxPromptLength),
        minSpacing: number('minSpacing', limit.minSpacing),
        ...(limit.labels === undefined ? {} : { labels: readTexts(section, 'labels', limit.labels) }),
        ...(limit.maxLength === undefined ? {} : { maxLength: number('maxLength', limit.maxLength) }),
      };
  }
}

function readTexts(section: Section, key: string, fallback: readonly string[]): readonly string[] {
  const value = section.has(key) ? section.get(key) : fallback;
  if (Array.isArray(value) && value.length > 0 && value.every((text) => typeof text === 'string')) {
    return [...(value as string[])];
  }
  section.refuse(key, `expected a list of strings, got ${describe(value)}.`);
  return fallback;
}
