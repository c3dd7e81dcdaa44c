import { defineConfig } from 'drizzle-kit';

export default defineConfig({
  dialect: 'postgresql',
  schema: './src/postgres/schema.ts',
  out: './migrations',
  schemaFilter: ['onetake'],
  // Ours alone: the default table is shared with the app's own drizzle, which would then skip migrations.
  migrations: { schema: 'onetake', table: 'schema_migrations' },
});
