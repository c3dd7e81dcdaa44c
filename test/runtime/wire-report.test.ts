import { expect, test } from 'vitest';
import type { Provider, ProviderSelfTest } from '../../src/core/provider.ts';
import { wireReport } from '../../src/runtime/wire-report.ts';

function reporting(selfTest?: () => Promise<ProviderSelfTest>) {
  const events: object[] = [];
  const provider = {
    name: 'mine',
    ...(selfTest === undefined ? {} : { selfTest }),
  } as Provider;
  const report = wireReport({
    worker: 'w',
    emit: (name, event) => events.push({ name, event }),
    providerNamed: (name) => (name === 'mine' ? provider : undefined),
  });
  return { report, events };
}

const unproven = (wireOracle: string, errorCode: string | null) => ({
  name: 'wire:unproven',
  event: { worker: 'w', provider: 'mine', wireOracle, errorCode },
});

test('says once that a provider can’t prove what was not sent, also when it finds out later', async () => {
  const answers: ProviderSelfTest[] = [
    { wireOracle: 'healthy', errorCode: null },
    { wireOracle: 'silent', errorCode: null },
    { wireOracle: 'unknown_shape', errorCode: 'repeated_send' },
  ];
  const { report, events } = reporting(async () => answers.shift() as ProviderSelfTest);
  await report('mine');
  expect(events).toEqual([]);
  await Promise.all([report('mine'), report('mine')]);
  await report('mine');
  expect(events).toEqual([unproven('silent', null)]);
});

test('is silent about a provider that is well, has no self-test, or is not there', async () => {
  const well = reporting(async () => ({ wireOracle: 'healthy', errorCode: null }));
  await well.report('mine');
  const without = reporting();
  await without.report('mine');
  await without.report('another');
  expect([...well.events, ...without.events]).toEqual([]);
});

test('takes a self-test that throws for one that could not run', async () => {
  const { report, events } = reporting(() => Promise.reject(new Error('a bug')));
  await report('mine');
  expect(events).toEqual([unproven('untested', null)]);
});
