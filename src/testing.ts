export {
  type EmbeddedPostgres,
  type EmbeddedPostgresOptions,
  startEmbeddedPostgres,
} from './embedded/start-embedded-postgres.ts';
export { startTestStack, type TestStack, type TestStackOptions } from './runtime/test-stack.ts';
