// Runs the real command line several times in one process: what costs is loading it. The first argument is a JSON
// array of argument lists; after each a line of its own says the exit code, on both streams.

const commands = JSON.parse(process.argv[2] ?? '[]') as string[][];
process.setMaxListeners(0);
for (const [number, args] of commands.entries()) {
  process.argv.splice(2, Number.POSITIVE_INFINITY, ...args);
  process.exitCode = 0;
  await import(`../../src/cli/main.ts?${number}`);
  for (const stream of [process.stdout, process.stderr]) stream.write(`### exit ${process.exitCode}\n`);
}
