import type { ResultDocument } from '../../core/provider.ts';
import { isJsonObject } from './body.ts';

const MAX_CHARACTERS = 1_000;
const MAX_TAGS = 50;

/** The title that music comes with, as a stream's is kept: `{ title: { title, summary, display_tags } }`; null without one. */
export function titleDocument(value: unknown): ResultDocument | null {
  if (!isJsonObject(value)) return typeof value === 'string' ? titleDocument({ title: value }) : null;
  const { title, summary, display_tags: tags } = value;
  const kept = {
    ...(typeof title === 'string' ? { title: storable(title) } : {}),
    ...(typeof summary === 'string' ? { summary: storable(summary) } : {}),
    ...(Array.isArray(tags) ? { display_tags: tagsOf(tags) } : {}),
  };
  return Object.keys(kept).length === 0 ? null : { title: kept };
}

function tagsOf(tags: readonly unknown[]): string[] {
  return tags
    .filter((tag) => typeof tag === 'string')
    .slice(0, MAX_TAGS)
    .map(storable);
}

/** jsonb holds neither NUL nor half a character. */
function storable(text: string): string {
  const whole = text
    .slice(0, 2 * MAX_CHARACTERS)
    .replaceAll('\u0000', '')
    .toWellFormed();
  return Array.from(whole).slice(0, MAX_CHARACTERS).join('');
}
