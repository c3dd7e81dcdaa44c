import type { ProviderSelfTest, WireOracleHealth } from '../../core/provider.ts';
import { createWireOracle, type WireOracle } from './wire-oracle.ts';
import { testWire } from './wire-self-test.ts';

/** A machine that was too busy for the test, or had no loopback yet, is asked again after this. */
const RETEST_MS = 60_000;

/** The oracle with its standing in this process. */
export interface ProvenOracle {
  readonly oracle: WireOracle;
  readonly health: WireOracleHealth;
  /** Resolves when the first test is over; a later one runs beside the caller. Never rejects. */
  prove(): Promise<ProviderSelfTest>;
  /** A POST has shown that the oracle misses what goes out. It is not asked again. */
  distrust(): void;
}

export function provenOracle(
  oracle: WireOracle = createWireOracle(),
  test: (oracle: WireOracle) => Promise<ProviderSelfTest> = testWire,
): ProvenOracle {
  let found: ProviderSelfTest = { wireOracle: 'untested', errorCode: null };
  let testing: Promise<void> | undefined;
  let testedAt = Number.NEGATIVE_INFINITY;
  let isDistrusted = false;

  const standing = (): ProviderSelfTest => {
    if (found.wireOracle !== 'healthy') return found;
    if (isDistrusted) return { wireOracle: 'silent', errorCode: null };
    // Nothing of ours sends a POST that is over: this is not the client that was tested.
    return oracle.lateSends > 0 ? { wireOracle: 'unknown_shape', errorCode: 'repeated_send' } : found;
  };
  const runTest = async () => {
    found = await test(oracle);
    if (found.wireOracle === 'unknown_shape' || found.wireOracle === 'silent') oracle.disarm();
    testedAt = performance.now();
  };
  return {
    oracle,
    get health() {
      return standing().wireOracle;
    },
    async prove() {
      testing ??= runTest();
      if (testedAt === Number.NEGATIVE_INFINITY) await testing;
      else if (found.wireOracle === 'untested' && performance.now() - testedAt >= RETEST_MS) {
        testedAt = performance.now();
        testing = runTest();
      }
      return standing();
    },
    distrust() {
      isDistrusted = true;
    },
  };
}
