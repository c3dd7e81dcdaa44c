import { readFileSync, statSync } from 'node:fs';
import { basename, extname, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import { OnetakeError } from '../core/errors.ts';
import { type ResolvedConfig, resolveConfig } from './options.ts';

export interface LoadConfigOptions {
  readonly cwd: string;
  /** From `cwd`. Left out, the file is looked for in `cwd` under its usual names. */
  readonly path?: string;
}

export interface LoadedConfig {
  readonly config: ResolvedConfig;
  /** Absolute; null when there is no file and everything is a default. */
  readonly path: string | null;
}

const EXTENSIONS = ['.ts', '.mts', '.js', '.mjs', '.json'];
const LONGEST_REASON = 200;

/** Throws `configuration_not_found` or `configuration_invalid`: one message, the reason in it, no stack. */
export async function loadConfig(options: LoadConfigOptions): Promise<LoadedConfig> {
  const found = options.path === undefined ? findConfig(options.cwd) : givenConfig(options.cwd, options.path);
  if (found === null) return { config: resolveConfig({}), path: null };
  const content = extname(found.path) === '.json' ? readJson(found) : await importDefault(found);
  return { config: resolveConfig(content, found.name), path: found.path };
}

interface ConfigFile {
  readonly path: string;
  /** As messages call it: what the user typed, or the file's name. */
  readonly name: string;
}

function findConfig(cwd: string): ConfigFile | null {
  const names = EXTENSIONS.map((extension) => `onetake.config${extension}`).filter((name) =>
    isFile(resolve(cwd, name)),
  );
  if (names.length > 1) {
    // Whichever won, somebody would edit the other one and wonder, at a provider that takes money.
    throw new OnetakeError(
      'configuration_invalid',
      `There are several configurations: ${names.join(', ')}.`,
      {
        hint: 'Keep one, or choose with --config.',
      },
    );
  }
  return names[0] === undefined ? null : { path: resolve(cwd, names[0]), name: names[0] };
}

function givenConfig(cwd: string, given: string): ConfigFile {
  const file = { path: resolve(cwd, given), name: given };
  if (!isFile(file.path)) {
    throw new OnetakeError('configuration_not_found', `Configuration ${given}: there is no such file.`, {
      hint: 'Correct the path, or leave it out to use onetake.config.ts or the defaults.',
    });
  }
  if (!EXTENSIONS.includes(extname(file.path))) {
    throw invalid(file, `expected a file that ends in ${EXTENSIONS.join(', ')}.`);
  }
  return file;
}

function isFile(path: string): boolean {
  return statSync(path, { throwIfNoEntry: false })?.isFile() ?? false;
}

function readJson(file: ConfigFile): unknown {
  const text = readText(file);
  try {
    return JSON.parse(text.replace(/^\uFEFF/, ''));
  } catch (error) {
    // The parser's message quotes the text around the mistake, which may be a secret: only the place is told.
    const place = /\(line \d+ column \d+\)/.exec(String(error))?.[0];
    throw invalid(
      file,
      `isn't valid JSON${place === undefined ? '' : ` ${place}`}.`,
      'JSON has double quotes around every name, no comments and no comma after the last; onetake.config.ts may have them.',
    );
  }
}

function readText(file: ConfigFile): string {
  try {
    return readFileSync(file.path, 'utf8');
  } catch {
    throw invalid(file, "can't be read.", 'Check its permissions.');
  }
}

async function importDefault(file: ConfigFile): Promise<unknown> {
  readText(file);
  let module: { readonly default?: unknown };
  try {
    // biome-ignore lint/plugin: the user's own file, which no layer rule could know
    module = await import(pathToFileURL(file.path).href);
  } catch (error) {
    throw importFailure(file, error);
  }
  if (module.default === undefined) {
    throw invalid(file, 'has no default export.', 'Write `export default { … }`.');
  }
  return module.default;
}

function importFailure(file: ConfigFile, error: unknown): OnetakeError {
  const { code, message } =
    error instanceof Error ? (error as NodeJS.ErrnoException) : { code: '', message: '' };
  const missing =
    code === 'ERR_MODULE_NOT_FOUND'
      ? /Cannot find (?:package|module) '([^']+)'/.exec(message)?.[1]
      : undefined;
  if (missing === 'onetake' || missing?.startsWith('onetake/')) {
    return invalid(
      file,
      "imports 'onetake', which isn't installed beside it.",
      'A plain object does as well: `export default { … }` without the import. Or install onetake there.',
    );
  }
  if (error instanceof SyntaxError && isModuleSyntaxInCommonJs(message)) {
    const renamed = basename(file.path).replace(/\.(ts|js)$/, '.m$1');
    return invalid(
      file,
      'is an ES module, but its package.json makes it CommonJS.',
      `Rename it to ${renamed}, or set "type": "module" in package.json.`,
    );
  }
  return invalid(file, `can't be loaded: ${reasonOf(file, error)}.`);
}

function isModuleSyntaxInCommonJs(message: string): boolean {
  return /^(Unexpected token 'export'|Cannot use import statement outside a module|Cannot use 'import\.meta')/.test(
    message,
  );
}

/** The first line of the reason, with its place when the loader tells it, without what it quotes of the file. */
function reasonOf(file: ConfigFile, error: unknown): string {
  if (!(error instanceof Error)) return 'it threw something that is no error';
  const first = error.message.split('\n').find((line) => line.trim() !== '') ?? error.name;
  const text = first
    .trim()
    .replace(/[a-z][a-z0-9+.-]*:\/\/\S+/gi, '(a URL)')
    .replace(/"[^"]*"?/g, '"…"')
    .replace(/^(Unexpected identifier|Invalid regular expression)\b.*/, '$1')
    .slice(0, LONGEST_REASON)
    .replace(/\.$/, '');
  const at = error.stack?.indexOf(`${basename(file.path)}:`) ?? -1;
  const line = at < 0 ? undefined : /:(\d+)/.exec(error.stack?.slice(at) ?? '')?.[1];
  return line === undefined ? text : `${text} (line ${line})`;
}

/** Without a cause: what the loader throws quotes the file. */
function invalid(file: ConfigFile, problem: string, hint?: string): OnetakeError {
  return new OnetakeError(
    'configuration_invalid',
    `Configuration ${file.name}: ${problem}`,
    hint === undefined ? {} : { hint },
  );
}
