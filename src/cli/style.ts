import { styleText } from 'node:util';

export type Format = 'bold' | 'dim' | 'red' | 'green' | 'yellow' | 'cyan';
export type Paint = (format: Format, text: string) => string;

/** Whether there are colours is decided by the caller, not by what this process's own streams are. */
export function painter(isColoured: boolean): Paint {
  return isColoured
    ? (format, text) => styleText(format, text, { validateStream: false })
    : (_format, text) => text;
}
