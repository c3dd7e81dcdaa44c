import { expect, it } from 'vitest';
import { answered, openBreakerWorld } from '../support/breaker-world.ts';
import { codeBlocks, readPage } from './pages.ts';

const fails = () => answered(502);
const accepts = () => answered(202);

/** The query of docs/breaker.md that says this. */
function query(part: string): string {
  const [found, ...more] = codeBlocks(readPage('docs/breaker.md'))
    .filter(({ language }) => language === 'sql')
    .map(({ code }) => code)
    .filter((code) => code.includes(part));
  if (found === undefined || more.length > 0) throw new Error(`${more.length + 1} queries with ${part}`);
  return found;
}

it('the queries that a threshold is chosen by tell the runs of failures, and what a shadow let through', async () => {
  const world = await openBreakerWorld({ breaker: { shadow: true, failureThreshold: 3 } });
  await world.each(fails(), accepts(), fails(), fails(), answered(429, { capacity: 'rate' }));
  await world.database.query('update onetake.accounts set paused_until = null, pause_kind = null');
  await world.each(accepts());
  await world.each(fails(), fails(), fails());
  // It would have been open for these.
  await world.each(accepts(), fails(), accepts());
  expect(await world.database.query(query('count(*) as runs'))).toEqual([
    { failures: '1', runs: '2' },
    { failures: '2', runs: '1' },
    { failures: '3', runs: '1' },
  ]);
  expect(await world.database.query(query('let_through'))).toMatchObject([
    {
      next_state: 'open',
      cause: 'failure_threshold',
      failures: 3,
      http_status: 502,
      let_through: '3',
      accepted: '2',
      frozen: '1',
    },
  ]);
});
