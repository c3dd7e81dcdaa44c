import { readdirSync, readFileSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';

export const REPOSITORY = join(import.meta.dirname, '..', '..');

export interface Page {
  /** From the repository's root. */
  readonly name: string;
  readonly directory: string;
  readonly text: string;
}

export interface CodeBlock {
  readonly language: string;
  readonly code: string;
}

/** Every page that a user reads, README first. */
export function readPages(): Page[] {
  const docs = readdirSync(join(REPOSITORY, 'docs')).filter((name) => name.endsWith('.md'));
  const names = [
    'README.md',
    ...docs.map((name) => `docs/${name}`),
    'examples/nextjs/README.md',
    'CHANGELOG.md',
  ];
  return names.map(readPage);
}

export function readPage(name: string): Page {
  const path = resolve(REPOSITORY, name);
  return { name, directory: dirname(path), text: readFileSync(path, 'utf8') };
}

export function codeBlocks({ text }: Page): CodeBlock[] {
  return [...text.matchAll(/^ *```(\S*)\n([\s\S]*?)^ *```$/gm)].map(([, language, code]) => ({
    language: language ?? '',
    code: code ?? '',
  }));
}

/** The text without its code blocks. */
export function prose({ text }: Page): string {
  return text.replace(/^ *```\S*\n[\s\S]*?^ *```$/gm, '');
}

/** The cells of each row of the tables whose header begins with `firstHeader`. */
export function tableRows(page: Page, firstHeader: string): string[][] {
  const rows: string[][] = [];
  let inside = false;
  for (const line of prose(page).split('\n')) {
    if (!line.startsWith('|')) inside = false;
    else if (!inside) inside = line.startsWith(`| ${firstHeader} |`);
    else if (!/^\|[ |-]+\|$/.test(line)) rows.push(cellsOf(line));
  }
  return rows;
}

function cellsOf(line: string): string[] {
  return line
    .slice(1, -1)
    .split('|')
    .map((cell) => cell.trim());
}

/** As GitHub makes them. */
export function anchors(page: Page): Set<string> {
  const headings = [...prose(page).matchAll(/^#+ (.+)$/gm)].map(([, title]) => title ?? '');
  return new Set(
    headings.map((title) =>
      title
        .toLowerCase()
        .replace(/[^\p{L}\p{N} _-]/gu, '')
        .replaceAll(' ', '-'),
    ),
  );
}
