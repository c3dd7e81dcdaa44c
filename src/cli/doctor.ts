import type { Command } from 'commander';
import type { Check } from '../runtime/doctor.ts';
import type { Runner } from './context.ts';
import { EXIT } from './errors.ts';
import type { Terminal } from './output.ts';

export function addDoctor(program: Command, run: Runner): void {
  program
    .command('doctor')
    .summary('checks database, configuration, keys and directories; changes nothing')
    .description(
      'Checks what onetake needs: the database and how durable it is, schema, rights, clocks, configuration, the ' +
        "provider and each account's key (one free request), and the directories of this machine. Changes nothing " +
        'and pays for nothing. Ends with 1 when a check fails; warnings are remarks.',
    )
    .addHelpText('after', '\nExample:\n  $ onetake doctor --env-file .env')
    .action(
      run(async ({ terminal, environment, config: load }) => {
        const { config, path } = await load();
        const { examine } = await import('../runtime/doctor.ts');
        const checks = await examine(config, environment, path);
        if (terminal.json) terminal.value({ checks });
        else show(terminal, checks);
        return checks.some(({ status }) => status === 'fail') ? EXIT.failed : EXIT.done;
      }),
    );
}

const SHOWN = { ok: 'ok', warn: 'warn', fail: 'FAIL' } as const;
const FORMAT = { ok: 'green', warn: 'yellow', fail: 'red' } as const;

function show(terminal: Terminal, checks: readonly Check[]): void {
  terminal.table<Check>(checks, [
    { title: 'check', value: (check) => check.name },
    { title: '', value: (check) => SHOWN[check.status], format: (check) => FORMAT[check.status] },
    { title: 'what, and what to do', value: sentence, flexible: 'wrap' },
  ]);
}

function sentence({ detail, hint }: Check): string {
  return hint === null ? detail : `${detail}. ${hint}`;
}
