import type { Command } from 'commander';
import type { MigrateResult } from '../runtime/migrate.ts';
import type { Runner } from './context.ts';

export function addMigrate(program: Command, run: Runner): void {
  program
    .command('migrate')
    .summary('brings the database to this release and writes the configuration into it')
    .description(
      'Applies the tables of onetake and of its queue, and writes limits and breaker settings of the configuration. ' +
        'Safe when many run it at once, and harmless when there is nothing to do.',
    )
    .addHelpText('after', '\nExample:\n  $ onetake migrate --env-file .env')
    .action(
      run(async ({ terminal, environment, config: load }) => {
        const { config, path } = await load();
        const connectionString = environment.connectionString(config);
        const { migrate } = await import('../runtime/migrate.ts');
        const result = await migrate({ connectionString, config });
        if (terminal.json) terminal.value(result);
        else terminal.print(...sentences(result, path === null));
        if (!terminal.json && result.trouble !== null) terminal.note(NOT_RECOGNISED);
        return undefined;
      }),
    );
}

const NOT_RECOGNISED =
  'This is not the database that was confirmed: workers submit nothing. See `onetake recover`.';

const SCHEMA = {
  missing: 'Created the schemas onetake and onetake_queue.',
  older: 'Brought the schema onetake up to this release.',
  current: 'The schema is up to date.',
  newer: 'The schema is newer than this release, and was left as it is.',
} as const satisfies Record<MigrateResult['from'], string>;

function sentences({ from, changed }: MigrateResult, isAllDefault: boolean): string[] {
  const source = isAllDefault ? ' (there is no configuration file: defaults)' : '';
  if (changed.length === 0)
    return [SCHEMA[from], 'The settings in the database are those of the configuration.'];
  return [SCHEMA[from], `Settings written${source}:`, ...changed.map((setting) => `  ${setting}`)];
}
