import { OnetakeError } from '../core/errors.ts';
import { FieldsError } from '../core/field-problems.ts';
import { fileFields } from '../core/media.ts';
import type { LocalFile, OperationName } from '../core/operations.ts';
import type { PreflightRules } from '../core/preflight.ts';
import type { Intent } from '../lifecycle/enqueue.ts';

/**
 * The intent with the references of its local files; the same object where it has none. Reads each file once
 * through, so it comes before any transaction of ours, and throws a `FieldsError` for what can't be sent.
 */
export async function inspectMedia(intent: Intent, rules: PreflightRules): Promise<Intent> {
  const { operation, fields } = intent;
  const names = fileFields(operation, fields as Readonly<Record<string, string>>).filter(
    (name) => fields[name] !== undefined,
  );
  if (names.length === 0) return intent;
  // Only now: an app that sends no file loads nothing of this.
  const { inspectSourceFile } = await import('../storage/source-file.ts');
  const media: Record<string, string> = {};
  const problems = [...(intent.problems ?? [])];
  for (const name of names) {
    const limit = rules.limits[operation as OperationName][name];
    const { file } = fields[name] as LocalFile;
    const seen = await inspectSourceFile(name, file, limit?.kind === 'media' ? limit : undefined);
    if ('text' in seen) media[name] = seen.text;
    else problems.push(...seen.problems);
  }
  // Without its content there is no payload that could be compared with what the key names already.
  if (Object.keys(media).length < names.length) throw new FieldsError(operation, problems);
  return { ...intent, media };
}

/** The same for many, one file at a time; what is wrong with one takes its place. */
export async function inspectMediaOf(
  items: readonly (Intent | OnetakeError)[],
  rules: PreflightRules,
): Promise<(Intent | OnetakeError)[]> {
  const inspected: (Intent | OnetakeError)[] = [];
  for (const item of items) {
    if (item instanceof OnetakeError) inspected.push(item);
    else {
      try {
        inspected.push(await inspectMedia(item, rules));
      } catch (error) {
        if (!(error instanceof OnetakeError)) throw error;
        inspected.push(error);
      }
    }
  }
  return inspected;
}
