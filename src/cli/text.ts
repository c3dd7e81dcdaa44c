// What a terminal can show: pure functions over text, no streams.

const WIDE =
  /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6]|\p{Emoji_Presentation}/u;
const MARK = /^(\p{M}|\p{Cf})$/u;

/** Stored text is somebody else's: an escape sequence in it could repaint the operator's terminal. */
export function plain(text: string): string {
  return text.replace(/[\p{Cc}\p{Cs}\u2028-\u202e\u2066-\u2069]/gu, '?');
}

/** Columns that `text` takes. */
export function displayWidth(text: string): number {
  let width = 0;
  for (const character of text) width += MARK.test(character) ? 0 : WIDE.test(character) ? 2 : 1;
  return width;
}

/** At most `width` columns, the last of them `…` when something was left out. */
export function truncate(text: string, width: number): string {
  if (displayWidth(text) <= width) return text;
  let kept = '';
  let used = 1;
  for (const character of text) {
    used += displayWidth(character);
    if (used > width) break;
    kept += character;
  }
  return width < 1 ? '' : `${kept}…`;
}

/** Lines of at most `width` columns, broken at blanks; a longer word keeps a line to itself. */
export function wrap(text: string, width: number): string[] {
  const lines: string[] = [];
  let line = '';
  for (const word of text.split(' ')) {
    if (line !== '' && displayWidth(line) + 1 + displayWidth(word) > width) {
      lines.push(line);
      line = word;
    } else {
      line = line === '' ? word : `${line} ${word}`;
    }
  }
  return [...lines, line];
}

/** Lines of at most `width` columns, whatever it takes; a word that is too long is broken after `_` or `/` if it can be. */
export function wrapHard(text: string, width: number): string[] {
  return wrap(text, width).flatMap((line) => {
    const parts: string[] = [];
    let part = '';
    for (const character of line) {
      if (part !== '' && displayWidth(part + character) > width) {
        const cut = Math.max(part.lastIndexOf('_'), part.lastIndexOf('/')) + 1 || part.length;
        parts.push(part.slice(0, cut));
        part = part.slice(cut);
      }
      part += character;
    }
    return [...parts, part];
  });
}

/** The first 8 digits: commands take them for the whole id. */
export function shortId(id: string): string {
  return id.slice(0, 8);
}

/** `850 ms`, `12 s`, `3 min`, `5 h`, `2 d`: the largest unit that fits, rounded down. */
export function duration(ms: number): string {
  const units = [
    ['d', 86_400_000],
    ['h', 3_600_000],
    ['min', 60_000],
    ['s', 1_000],
  ] as const;
  const [unit, size] = units.find(([, each]) => ms >= each) ?? ['ms', 1];
  return `${Math.max(0, Math.floor(ms / size))} ${unit}`;
}

/** `2026-03-01 12:00:30Z`: UTC, as `--json` has it, without the fraction. */
export function instant(at: Date): string {
  return at
    .toISOString()
    .replace('T', ' ')
    .replace(/\.\d+Z$/, 'Z');
}

/** `1.4 MB`, of 1,000 each. */
export function size(bytes: number): string {
  if (bytes < 1_000) return `${bytes} B`;
  const units = ['kB', 'MB', 'GB'];
  // As it is rounded: 999,950 bytes are 1.0 MB, not 1000.0 kB.
  const power = Math.min(units.length, Math.floor(Math.log10(bytes / 0.99995) / 3));
  return `${(bytes / 1_000 ** power).toFixed(1)} ${units[power - 1]}`;
}
