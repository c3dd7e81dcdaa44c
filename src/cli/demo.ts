import { resolve } from 'node:path';
import type { Command } from 'commander';
import type { Runner } from './context.ts';

export function addDemo(program: Command, run: Runner): void {
  program
    .command('demo')
    .summary('the whole story in a minute, on this machine alone')
    .description(
      'Runs thirty songs through an outage on an embedded PostgreSQL and the provider simulator, settles what was ' +
        'frozen, and closes with a ledger. Reads no configuration and no key, and never leaves this machine.',
    )
    .option('--keep', 'leaves everything running and prints the connection string', false)
    .option('--directory <path>', 'where the songs go (default: ./generations)')
    .addHelpText('after', '\nExample:\n  $ onetake demo --keep')
    .action(
      run(async ({ terminal, signals, cwd }, options: { keep: boolean; directory?: string }) => {
        const { demo } = await import('./demo/demo.ts');
        const { keep, directory } = options;
        return demo(
          {
            keep,
            json: terminal.json,
            ...(directory === undefined ? {} : { directory: resolve(cwd, directory) }),
          },
          terminal,
          signals.drain(),
        );
      }),
    );
}
