/**
 * Runs one statement: on our pool, or inside the transaction that the caller holds. In a file of its own, so that the
 * public types don't lead to those of pg-boss.
 */
export interface Executor {
  // biome-ignore lint/suspicious/noExplicitAny: pg-boss's own type for its rows.
  executeSql(text: string, values?: unknown[]): Promise<{ rows: any[] }>;
}
