const HEADER_EVERY = 20;

/** One line at a time, and now and then what its columns mean. */
export class ProgressTable {
  #lines = 0;

  line(columns: Readonly<Record<string, number>>): string {
    const cells = (of: (name: string, value: number) => string) =>
      Object.entries(columns)
        .map(([name, value]) => of(name, value).padStart(name.length + 1))
        .join('');
    const line = cells((_, value) => String(value));
    return this.#lines++ % HEADER_EVERY === 0 ? `${cells((name) => name)}\n${line}` : line;
  }
}
