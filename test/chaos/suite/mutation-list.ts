// One deliberate fault of the product each, as a change of its text, and who is expected to notice.

export interface Edit {
  readonly file: string;
  readonly find: string;
  readonly replace: string;
}

export interface Mutation {
  readonly name: string;
  readonly breaks: string;
  readonly edits: readonly Edit[];
  /** A plan in which what it takes comes early. */
  readonly seed?: string;
  /** How long the suite may take to meet it, where a minute is too short. */
  readonly minutes?: number;
  /** Too rare for the suite, or out of its sight: the tests alone. */
  readonly testsOnly?: true;
  /** Who is asked when the suite has seen nothing. */
  readonly tests?: readonly {
    readonly project: 'core' | 'unit' | 'postgres' | 'chaos';
    readonly file: string;
  }[];
}

const edit = (file: string, find: string, replace: string): Edit => ({ file, find, replace });

export const MUTATIONS: readonly Mutation[] = [
  {
    name: 'resend_on_502',
    breaks: 'a 502 counts as a refusal, and is sent again',
    edits: [
      edit(
        'src/core/outcome.ts',
        'return response.resubmitOn?.includes(status)',
        'return status === 502 || response.resubmitOn?.includes(status)',
      ),
    ],
  },
  {
    name: 'post_before_intent',
    breaks: 'the POST goes out before the commit of `submitting`',
    edits: [
      edit(
        'src/lifecycle/admit.ts',
        'const plan = await commitPlan(ctx, lane, attemptIds, options, mayAsk);',
        `const plan = await new Promise<AdmissionPlan>((resolve, reject) => {
    early.push(resolve);
    commitPlan(ctx, lane, attemptIds, options, mayAsk).then(resolve, reject);
  });`,
      ),
      edit(
        'src/lifecycle/admit.ts',
        '      return tried.plan;\n',
        '      early.shift()?.(tried.plan);\n      return tried.plan;\n',
      ),
      edit(
        'src/lifecycle/admit.ts',
        'type AdmissionPlan =',
        'const early: ((plan: AdmissionPlan) => void)[] = [];\ntype AdmissionPlan =',
      ),
    ],
  },
  {
    name: 'assume_commit',
    seed: 'm4',
    minutes: 2,
    breaks: 'a COMMIT with an unknown outcome is taken for done',
    edits: [
      edit(
        'src/lifecycle/admit.ts',
        'const committed = await wasCommitted(ctx, plan.attempts, mayAsk);',
        'const committed = true as boolean | undefined;',
      ),
    ],
  },
  {
    name: 'rescue_ignores_lease',
    breaks: 'rescue takes attempts from live workers',
    edits: [
      edit('src/lifecycle/record-outcome.ts', '(isLate || !attempt.leaseIsOver)', 'isLate'),
      edit(
        'src/postgres/submission-attempts.ts',
        'where a.settled_at is null and a.lease_expires_at <= now() and',
        'where a.settled_at is null and',
      ),
    ],
  },
  {
    name: 'rescue_requeues',
    breaks: 'an attempt whose worker is lost counts as unsent',
    edits: [
      edit(
        'src/core/outcome.ts',
        "  health: 'none',\n  certainty: 'unknown',\n  reason: 'worker_lost',",
        "  health: 'none',\n  certainty: 'unsent',\n  reason: 'worker_lost',",
      ),
      edit(
        'src/core/outcome.ts',
        "return outcome.certainty === 'unsent' && !byLiveAttempt ? { ...outcome, ...WORKER_LOST } : outcome;",
        'return byLiveAttempt ? outcome : { ...outcome };',
      ),
    ],
  },
  {
    name: 'no_id_is_rejected',
    breaks: 'a 202 without a task id counts as a refusal',
    edits: [
      edit(
        'src/core/outcome.ts',
        "return { health: 'unknown_failure', certainty: 'unknown', reason, alert: true };",
        "return { health: 'unknown_failure', certainty: 'refused', reason, alert: true };",
      ),
    ],
  },
  {
    name: 'reset_is_unsent',
    breaks: 'a connection that ends after the POST counts as unsent',
    edits: [
      edit(
        'src/provider/sonilo/submit.ts',
        'const unsent = sent.headersSent === false;',
        'const unsent = sent.headersSent === false || /^(ECONNRESET|UND_ERR_SOCKET)$/.test(String(wireCode(end.reply)));',
      ),
      edit(
        'src/provider/sonilo/submit.ts',
        'const outcome = noStatus(verdict, errorCode, sent, end.closed);',
        "const outcome = noStatus(verdict, errorCode, unsent ? { headersSent: false, headersSentProof: 'oracle' } : sent, end.closed);",
      ),
    ],
  },
  {
    name: 'settle_by_posting_again',
    breaks: 'an outcome that takes too long to be stored is asked for again, by a POST',
    edits: [
      edit(
        'src/runtime/worker-process.ts',
        'const isCommitted = await settle(ctx, attempt, outcome, giveUp.signal);',
        `const slow = new Promise<boolean>((resolve) => setTimeout(resolve, 300, false));
    let isCommitted = await Promise.race([settle(ctx, attempt, outcome, giveUp.signal), slow]);
    if (!isCommitted) {
      isCommitted = await settle(ctx, attempt, await submit(ctx, attempt, lane.provider, maySend), giveUp.signal);
    }`,
      ),
    ],
  },
  {
    name: 'stale_outcomes_count',
    breaks: 'outcomes of an older generation move the breaker',
    edits: [
      edit(
        'src/core/circuit-breaker.ts',
        "if (outcome.generation !== breaker.generation) return { next: breaker, effect: 'stale_generation' };",
        "if (breaker.state === 'open' && outcome.health === 'success') {\n    return { next: { state: 'closed', generation: breaker.generation + 1, consecutiveFailures: 0, rampAcceptances: null }, effect: 'closed', cause: 'probe_succeeded' };\n  }",
      ),
    ],
  },
  {
    name: 'two_probes',
    breaks: 'a half-open breaker lets others through',
    edits: [
      edit(
        'src/core/circuit-breaker.ts',
        "    case 'half_open':\n      return { permit: 'refuse', retryAt: undefined };",
        "    case 'half_open':\n      return { permit: 'allow' };",
      ),
    ],
  },
  {
    name: 'open_is_not_respected',
    breaks: 'an open breaker lets requests through',
    edits: [
      edit(
        'src/core/circuit-breaker.ts',
        "{ permit: 'refuse', retryAt: breaker.retryAt };",
        "{ permit: 'allow' };",
      ),
    ],
  },
  {
    name: 'slot_freed_at_lease_end',
    breaks: 'every unknown attempt gives its slot back',
    edits: [
      edit(
        'src/lifecycle/record-outcome.ts',
        "return outcome.certainty === 'unknown' && httpStatus !== null && httpStatus >= 500 && httpStatus <= 599;",
        "return outcome.certainty === 'unknown';",
      ),
    ],
    tests: [{ project: 'postgres', file: 'test/lifecycle/settle.pg.test.ts' }],
  },
  {
    name: 'concurrency_ignored',
    breaks: 'slots are not counted',
    edits: [
      edit('src/core/admission.ts', "if (slots <= 0) return { permits: 0, blockedBy: 'concurrency' };", ''),
      edit(
        'src/core/admission.ts',
        'Math.min(wanted, ramp, rate, slots, trial)',
        'Math.min(wanted, ramp, rate, trial)',
      ),
    ],
  },
  {
    name: 'rate_from_admission',
    testsOnly: true,
    breaks: 'the minute of a POST is counted from its admission',
    edits: [
      edit(
        'src/lifecycle/write-intent.ts',
        'windowUntil: new Date(leaseEnd + RATE_WINDOW_MS)',
        'windowUntil: new Date(now.getTime() + RATE_WINDOW_MS)',
      ),
    ],
    tests: [
      { project: 'postgres', file: 'test/lifecycle/admit.pg.test.ts' },
      { project: 'postgres', file: 'test/lifecycle/submit.pg.test.ts' },
    ],
  },
  {
    name: 'rearm_ignores_quarantine',
    breaks: 'a re-arm is sent while the old POST may still arrive',
    edits: [
      edit(
        'migrations/0001_sql_interface.sql',
        'greatest(at_once, onetake.quarantine_end(resolve_as_not_accepted.request_id))',
        'at_once',
      ),
    ],
    tests: [{ project: 'postgres', file: 'test/postgres/operator-functions.pg.test.ts' }],
  },
  {
    name: 'enqueue_beside_the_transaction',
    breaks: 'a request is committed though its caller rolls back',
    edits: [edit('src/runtime/client.ts', 'if (tx !== undefined) {', 'if (tx === null) {')],
  },
  {
    name: 'prompt_in_the_job',
    breaks: 'the prompt travels through the queue',
    edits: [
      edit(
        'src/lifecycle/enqueue.ts',
        'return await enqueueRequests(tx, requests);',
        'const told = await enqueueRequests(tx, requests);\n    for (const request of requests) await tx.executeSql("update onetake_queue.job set output = to_jsonb($1::text) where singleton_key = $2", [JSON.stringify(request.fields), request.id]);\n    return told;',
      ),
    ],
  },
  {
    name: 'key_to_the_file_host',
    breaks: 'downloads carry the key',
    edits: [
      edit(
        'src/storage/download.ts',
        "'user-agent': 'onetake'",
        "'user-agent': 'onetake', authorization: 'Bearer key'",
      ),
    ],
  },
  {
    name: 'dies_with_its_connections',
    breaks: 'an idle connection that ends takes the process with it',
    edits: [
      edit('src/postgres/database.ts', "pool.on('error', () => {});", ''),
      edit('src/postgres/database.ts', "pool.on('connect', (client) => client.on('error', () => {}));", ''),
    ],
  },
  {
    name: 'transaction_over_a_wait',
    breaks: 'B1 holds its locks while it waits for something else',
    edits: [
      edit(
        'src/lifecycle/record-outcome.ts',
        '  if (isLost) {\n    await writeHealthEffect',
        "  if (teller === 'worker') await new Promise((resolve) => setTimeout(resolve, 3_000));\n  if (isLost) {\n    await writeHealthEffect",
      ),
    ],
  },
  {
    name: 'intent_may_vanish',
    testsOnly: true,
    breaks: 'the commit of the intent is as asynchronous as the role says',
    edits: [
      edit(
        'src/postgres/session.ts',
        "where pg_catalog.current_setting('synchronous_commit') in ('off', 'local', 'remote_write')",
        'where false',
      ),
    ],
    tests: [{ project: 'chaos', file: 'test/chaos/durability.pg.test.ts' }],
  },
  {
    name: 'late_answers_dropped',
    testsOnly: true,
    breaks: 'an answer that comes after the lease is forgotten',
    edits: [
      edit(
        'src/lifecycle/record-outcome.ts',
        'const isLate = attempt.settledAt !== null;',
        "const isLate = attempt.settledAt !== null;\n  if (isLate) return nothing('nothing');",
      ),
    ],
    tests: [{ project: 'postgres', file: 'test/lifecycle/settle.pg.test.ts' }],
  },
];
