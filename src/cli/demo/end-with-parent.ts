// Preloaded into the demo's children with --import. The end of stdin is the only sign that a SIGKILL of the
// demo can't suppress; without it they would go on looking for a database that is gone.
const end = (): void => process.exit(0);

process.stdin.on('end', end).on('close', end).on('error', end).resume();
// A child that drains after SIGTERM must be able to end by itself while the demo still lives.
process.stdin.unref();
