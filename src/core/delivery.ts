import { type EncodedFields, OPERATIONS, type Operation, type OperationName } from './operations.ts';
import type { ResultFile } from './provider.ts';

// What was ordered, beside what came: a difference is told, and never a failure, since it is paid for.

export type DeliveredFile = Pick<ResultFile, 'variant' | 'label' | 'contentType'>;

const STEMS = ['drums', 'bass', 'vocals', 'other'];

const CONTENT_TYPES: Readonly<Record<string, readonly string[]>> = {
  aac: ['audio/aac', 'audio/aacp', 'audio/x-aac', 'audio/x-hx-aac-adts'],
  flac: ['audio/flac', 'audio/x-flac'],
  m4a: ['audio/mp4', 'audio/m4a', 'audio/x-m4a', 'audio/mp4a-latm'],
  mp3: ['audio/mpeg', 'audio/mp3', 'audio/x-mp3', 'audio/x-mpeg'],
  wav: ['audio/wav', 'audio/x-wav', 'audio/wave', 'audio/vnd.wave'],
};

/** `fields` as they were sent. Nothing that came at all is another matter, and has no warning here. */
export function deliveryWarnings(
  operationName: string,
  fields: EncodedFields,
  files: readonly DeliveredFile[],
): readonly string[] {
  const operation = operationOf(operationName);
  if (operation === undefined || files.length === 0) return [];
  const warnings: string[] = [];
  const variants = new Set(files.filter(({ label }) => label === null).map(({ variant }) => variant));
  if (operation.result === 'languages') {
    const languages = new Set(files.map(({ label }) => label));
    if (orderedLanguages(fields).some((language) => !languages.has(language))) {
      warnings.push('fewer_languages');
    }
  } else if (variants.size < Number(fields['variants_num'] ?? 1)) warnings.push('fewer_variants');
  if (fields['stems'] === 'true') {
    const came = new Set(files.map(({ variant, label }) => `${variant} ${label}`));
    const whole = [...variants].every((variant) => STEMS.every((stem) => came.has(`${variant} ${stem}`)));
    if (!whole) warnings.push('fewer_stems');
  }
  if (files.some((file) => isOtherFormat(operation, fields, file))) warnings.push('other_format');
  return warnings;
}

/** The languages that a dubbing was ordered in, as the provider names them. */
export function orderedLanguages(fields: EncodedFields): readonly string[] {
  try {
    const languages: unknown = JSON.parse(fields['languages'] ?? '[]');
    return Array.isArray(languages) ? languages.filter((language) => typeof language === 'string') : [];
  } catch {
    return [];
  }
}

/** How long a task of this order may run before it is overdue. */
export function runLimitMs(operationName: string, fields: EncodedFields, configuredMs: number): number {
  const longer = operationOf(operationName)?.longer;
  if (longer === undefined || fields[longer.field] !== 'true') return configuredMs;
  return Math.max(configuredMs, longer.maxRunMs);
}

function isOtherFormat(operation: Operation, fields: EncodedFields, file: DeliveredFile): boolean {
  const ordered = operation.format === undefined ? undefined : fields[operation.format];
  const known = ordered === undefined ? undefined : CONTENT_TYPES[ordered];
  // What nobody has named a type of is no other one, and the stems are the provider's own choice.
  if (known === undefined || file.label !== null || file.contentType === null) return false;
  return !known.includes(file.contentType.toLowerCase());
}

function operationOf(name: string): Operation | undefined {
  return Object.hasOwn(OPERATIONS, name) ? OPERATIONS[name as OperationName] : undefined;
}
