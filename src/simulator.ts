export { createSimulator, type Simulator, type SimulatorAddress } from './simulator/create-simulator.ts';
export type { SimulatorOptions } from './simulator/options.ts';
