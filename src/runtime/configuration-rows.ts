import type { CircuitBreakerSettings } from '../core/circuit-breaker.ts';
import type { Emit } from '../core/events.ts';
import { OPERATION_NAMES } from '../core/operations.ts';
import { findAccount, upsertAccount } from '../postgres/accounts.ts';
import { breakerName, configureCircuitBreaker, peekCircuitBreaker } from '../postgres/circuit-breakers.ts';
import type { Sql } from '../postgres/database.ts';
import type { ResolvedConfig } from './options.ts';

// Limits and breaker settings are rows, since processes must agree on them: `migrate` writes them, everyone
// reads them, and two versions of a file during a deploy can't flap.

/** Writes the rows that the configuration speaks of, and says which changed. */
export async function writeConfigurationRows(tx: Sql, config: ResolvedConfig): Promise<string[]> {
  const changed: string[] = [];
  for (const [name, account] of Object.entries(config.accounts)) {
    if (await upsertAccount(tx, { name, ...account })) changed.push(`accounts.${name}`);
  }
  for (const provider of new Set(Object.values(config.accounts).map((account) => account.provider))) {
    for (const operation of OPERATION_NAMES) {
      const { breaker } = config.operations[operation];
      if (await configureCircuitBreaker(tx, breakerName(provider, operation), breaker)) {
        changed.push(`operations.${operation}.breaker`);
      }
    }
  }
  return changed;
}

/** Settings of which this process's file and the rows say different things. */
export async function listDifferences(sql: Sql, config: ResolvedConfig): Promise<string[]> {
  const differing: string[] = [];
  for (const [name, account] of Object.entries(config.accounts)) {
    const row = await findAccount(sql, name);
    if (
      row?.provider !== account.provider ||
      row.requestsPerMinute !== account.requestsPerMinute ||
      row.maxConcurrentGenerations !== account.maxConcurrentGenerations
    ) {
      differing.push(`accounts.${name}`);
    }
    for (const operation of OPERATION_NAMES) {
      const { breaker } = config.operations[operation];
      const stored = (await peekCircuitBreaker(sql, breakerName(account.provider, operation)))?.settings;
      if (stored !== undefined && !sameSettings(stored, breaker)) {
        differing.push(`operations.${operation}.breaker`);
      }
    }
  }
  return [...new Set(differing)];
}

/** Says once when this process's file and the rows disagree. The rows rule. */
export async function reportDifferences(sql: Sql, config: ResolvedConfig, emit: Emit): Promise<void> {
  const differing = await listDifferences(sql, config);
  if (differing.length > 0) emit('configuration:differs', { settings: differing.join(', ') });
}

function sameSettings(a: CircuitBreakerSettings, b: CircuitBreakerSettings): boolean {
  const keys = Object.keys(a) as (keyof CircuitBreakerSettings)[];
  return keys.every((key) => a[key] === b[key]);
}
