export type { KeyBehaviour, RetryAfterStyle } from './simulator/accounts.ts';
export { createSimulator, type Simulator, type SimulatorAddress } from './simulator/create-simulator.ts';
export type { SimulatorEvent, SimulatorPost } from './simulator/events.ts';
export { formDigest } from './simulator/form.ts';
export type { Ledger, LedgerAccount, LedgerAnswer, LedgerForm, LedgerTotals } from './simulator/ledger.ts';
export type { SimulatorOptions } from './simulator/options.ts';
export { type FaultEnd, parseScript, type ScriptedResponse, type ScriptRule } from './simulator/script.ts';
