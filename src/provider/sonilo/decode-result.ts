import { orderedLanguages } from '../../core/delivery.ts';
import {
  type EncodedFields,
  OPERATIONS,
  type OperationName,
  type ResultShape,
} from '../../core/operations.ts';
import type { ResultDocument, ResultFile, TaskReading } from '../../core/provider.ts';
import { isJsonObject, type JsonObject } from './body.ts';
import { titleDocument } from './title.ts';

type Succeeded = Extract<TaskReading, { kind: 'succeeded' }>;

/** A file without its place among the others; `variant` is null where the answer doesn't say. */
interface Entry {
  readonly variant: number | null;
  readonly label: string | null;
  readonly kind: ResultFile['kind'];
  readonly url: string;
  readonly contentType: string | null;
  readonly bytes: number | null;
}

/** Room for the variants of one kind: a file's index says the same in each reading, whatever else came. */
const VARIANTS = 100;
/** In this order for ever: the place of each is a part of the indexes of what has been stored. */
const EXTRAS = [
  'drums',
  'bass',
  'vocals',
  'other',
  'speech',
  'ducked',
  'mux',
  'music',
  'music_processed',
  'sfx',
] as const;
type Extra = (typeof EXTRAS)[number];

/** Which to look at where the operation's own shape has nothing: shapes have changed without a version. */
const SHAPES: readonly Exclude<ResultShape, 'analysis'>[] = ['audio', 'video', 'output', 'languages'];

/** A finished task: what was ordered by its place in the answer, and what came with it. */
export function decodeResult(
  body: JsonObject,
  order: { readonly operation: string; readonly fields: EncodedFields },
): Succeeded {
  const warnings = new Set<string>();
  const shape = shapeOf(order.operation);
  const document = shape === 'analysis' ? documentOf(body, warnings) : null;
  const main =
    document === null
      ? [shape, ...SHAPES.filter((other) => other !== shape)]
          .map((one) => mainEntries(one, body))
          .find((entries) => entries.length > 0)
      : undefined;
  const files = [
    ...place(main ?? [], orderedLanguages(order.fields), warnings),
    ...extraEntries(body).map(([label, entry]) => placeExtra(label, entry)),
  ];
  const stemsError = body['stems_error'];
  if (stemsError !== undefined && stemsError !== null && stemsError !== '' && stemsError !== false) {
    warnings.add('stems_error');
  }
  const byIndex = new Map<number, ResultFile>();
  for (const file of files) if (!byIndex.has(file.index)) byIndex.set(file.index, file);
  const sorted = [...byIndex.values()].sort((a, b) => a.index - b.index);
  // Without a file there is nothing that it is the title of: the task has brought nothing.
  const title = document === null && sorted.length > 0 ? titleDocument(body['title']) : null;
  return { kind: 'succeeded', files: sorted, document: document ?? title, warnings: [...warnings] };
}

function shapeOf(operation: string): ResultShape {
  return Object.hasOwn(OPERATIONS, operation) ? OPERATIONS[operation as OperationName].result : 'audio';
}

function mainEntries(shape: ResultShape, body: JsonObject): Entry[] {
  switch (shape) {
    // An array for music, an object for effects; both shapes have been documented for both.
    case 'audio':
      return entriesOf(body['audio'], 'audio');
    case 'video': {
      const videos = entriesOf(body['videos'], 'video');
      return videos.length > 0 ? videos : entriesOf(body['video'], 'video');
    }
    case 'output': {
      const kind = body['output_type'] === 'video' ? 'video' : 'audio';
      const { content_type, output_bytes: file_size, output_url: url } = body;
      const first = entriesOf(url === undefined ? [] : { url, content_type, file_size }, kind);
      const all = Array.isArray(body['outputs']) ? entriesOf(body['outputs'], kind) : [];
      // What stands above is the first of them, where the list has no first.
      return all.some(({ variant }) => variant === null || variant === 0) ? all : [...zero(first), ...all];
    }
    case 'languages':
      return isJsonObject(body['outputs']) ? languageEntries(body['outputs']) : [];
    case 'analysis':
      return [];
  }
}

const zero = (entries: readonly Entry[]): Entry[] => entries.map((entry) => ({ ...entry, variant: 0 }));

function languageEntries(outputs: JsonObject): Entry[] {
  return Object.entries(outputs).flatMap(([language, value]) =>
    /^[A-Za-z0-9_-]{1,35}$/.test(language)
      ? entriesOf(value, 'video').map((entry) => ({ ...entry, variant: 0, label: language }))
      : [],
  );
}

function extraEntries(body: JsonObject): (readonly [Extra, Entry])[] {
  const found: (readonly [Extra, Entry])[] = [];
  const add = (label: Extra, value: unknown, kind: ResultFile['kind'] = 'audio') => {
    for (const entry of entriesOf(value, kind)) found.push([label, { ...entry, label }]);
  };
  for (const stems of listOf(body['stems']).filter(isJsonObject)) {
    const variant = variantOf(stems);
    for (const label of ['drums', 'bass', 'vocals', 'other'] as const) {
      for (const entry of entriesOf(stems[label], 'audio')) found.push([label, { ...entry, label, variant }]);
    }
  }
  add('speech', body['vocals']);
  add('ducked', body['ducked']);
  add('mux', body['mux'], 'video');
  for (const label of ['music', 'music_processed', 'sfx'] as const) add(label, body[label]);
  return found;
}

/** One or many, each a URL or an object that has one. */
function entriesOf(value: unknown, kind: ResultFile['kind']): Entry[] {
  return listOf(value).flatMap((item) => {
    const entry = isJsonObject(item) ? item : { url: item };
    const url = entry['url'] ?? entry['output_url'];
    if (!isUsableUrl(url)) return [];
    const contentType = mediaTypeOf(entry['content_type']);
    const bytes = wholeNumber(entry['file_size'] ?? entry['output_bytes']);
    return [
      {
        variant: variantOf(entry),
        label: null,
        kind: kindOf(contentType) ?? kind,
        url,
        contentType,
        bytes: bytes === 0 ? null : bytes,
      },
    ];
  });
}

function listOf(value: unknown): readonly unknown[] {
  if (Array.isArray(value)) return value;
  return value === undefined || value === null ? [] : [value];
}

/** Paid for, so nothing is dropped: a lone one is variant 0, several without a number say that nobody knows which is which. */
function place(entries: readonly Entry[], languages: readonly string[], warnings: Set<string>): ResultFile[] {
  if (entries.some(({ label }) => label !== null)) return placeLanguages(entries, languages);
  const files = new Map<number, ResultFile>();
  const without: Entry[] = [];
  for (const entry of entries) {
    const { variant } = entry;
    if (variant === null) without.push(entry);
    else if (files.has(variant)) warnings.add('duplicate_stream_index');
    else files.set(variant, { ...entry, index: variant, variant });
  }
  if (without.length > 0 && entries.length > 1) warnings.add('missing_stream_index');
  let free = 0;
  for (const entry of without) {
    while (files.has(free)) free += 1;
    if (free < VARIANTS) files.set(free, { ...entry, index: free, variant: free });
  }
  return [...files.values()];
}

/** By their place in the order, so that one that is missing moves no other; what nobody ordered comes after. */
function placeLanguages(entries: readonly Entry[], languages: readonly string[]): ResultFile[] {
  const places = new Map([...new Set(languages)].map((language, index) => [language, index]));
  const labels = entries.map(({ label }) => label as string);
  for (const label of labels.filter((one) => !places.has(one)).sort()) places.set(label, places.size);
  return entries.map((entry) => ({
    ...entry,
    index: places.get(entry.label as string) as number,
    variant: 0,
  }));
}

function placeExtra(label: Extra, entry: Entry): ResultFile {
  const variant = entry.variant ?? 0;
  return { ...entry, index: (EXTRAS.indexOf(label) + 1) * VARIANTS + variant, variant };
}

const MAX_DOCUMENT_CHARACTERS = 1_000_000;
const MAX_DOCUMENT_DEPTH = 32;

/** What an analysis found. Null: neither of the two lists is there. */
function documentOf(body: JsonObject, warnings: Set<string>): ResultDocument | null {
  const { segments, variations } = body;
  if (!Array.isArray(segments) && !Array.isArray(variations)) return null;
  try {
    const document = storable({ segments: segments ?? [], variations: variations ?? [] }, 0);
    if (JSON.stringify(document).length <= MAX_DOCUMENT_CHARACTERS) return document as ResultDocument;
  } catch {
    // Too deep: below.
  }
  warnings.add('document_unusable');
  return null;
}

/** jsonb holds neither NUL nor half a character. */
function storable(value: unknown, depth: number): unknown {
  if (depth > MAX_DOCUMENT_DEPTH) throw new Error('too deep');
  if (typeof value === 'string') return value.replaceAll('\u0000', '').toWellFormed();
  if (Array.isArray(value)) return value.map((item) => storable(item, depth + 1));
  if (!isJsonObject(value)) return value;
  return Object.fromEntries(
    Object.entries(value).map(([key, item]) => [storable(key, depth + 1), storable(item, depth + 1)]),
  );
}

function variantOf(entry: JsonObject): number | null {
  const variant = wholeNumber(entry['stream_index'] ?? entry['variant_index']);
  return variant !== null && variant < VARIANTS ? variant : null;
}

/** As it stands it goes to the download and into a column, and neither takes control characters. */
function isUsableUrl(url: unknown): url is string {
  return typeof url === 'string' && URL.canParse(url) && !/[\p{Cc}\p{Cs}]/u.test(url);
}

const MEDIA_TYPE = /^[\w.+-]{1,64}\/[\w.+-]{1,64}$/;

function mediaTypeOf(value: unknown): string | null {
  return typeof value === 'string' && MEDIA_TYPE.test(value) ? value : null;
}

function kindOf(contentType: string | null): ResultFile['kind'] | null {
  if (contentType === null) return null;
  if (/^audio\//i.test(contentType)) return 'audio';
  return /^video\//i.test(contentType) ? 'video' : null;
}

function wholeNumber(value: unknown): number | null {
  return Number.isSafeInteger(value) && (value as number) >= 0 ? (value as number) : null;
}
