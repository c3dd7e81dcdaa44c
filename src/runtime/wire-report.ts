import type { Emit } from '../core/events.ts';
import type { Provider, ProviderSelfTest } from '../core/provider.ts';
import { withDeadline } from '../lifecycle/pause.ts';

/** Longer than a provider's own bound; an app's provider may not keep it. */
const TIMEOUT_MS = 10_000;
const NO_ANSWER: ProviderSelfTest = { wireOracle: 'untested', errorCode: null };

export interface WireReportOptions {
  readonly worker: string;
  readonly emit: Emit;
  readonly providerNamed: (name: string) => Provider | undefined;
}

/**
 * Asks a provider whether it can still prove what was not sent, and says it once when it can't. A provider
 * without a self-test is taken at its word. Never rejects.
 */
export function wireReport(options: WireReportOptions): (name: string) => Promise<void> {
  const { worker, emit, providerNamed } = options;
  const told = new Set<string>();
  return async (provider) => {
    if (told.has(provider)) return;
    const { wireOracle, errorCode } = await ask(providerNamed(provider));
    if (wireOracle === 'healthy' || told.has(provider)) return;
    told.add(provider);
    emit('wire:unproven', { worker, provider, wireOracle, errorCode });
  };
}

async function ask(provider: Provider | undefined): Promise<ProviderSelfTest> {
  if (provider?.selfTest === undefined) return { wireOracle: 'healthy', errorCode: null };
  try {
    return await withDeadline(provider.selfTest(), TIMEOUT_MS, NO_ANSWER);
  } catch {
    return NO_ANSWER;
  }
}
