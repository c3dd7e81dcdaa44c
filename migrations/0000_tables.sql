CREATE SCHEMA IF NOT EXISTS "onetake";--> statement-breakpoint
CREATE TABLE "onetake"."account_holds" (
	"id" bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY (sequence name "onetake"."account_holds_id_seq" INCREMENT BY 1 MINVALUE 1 MAXVALUE 9223372036854775807 START WITH 1 CACHE 1),
	"account" text NOT NULL,
	"operation" text,
	"kind" text NOT NULL,
	"reason" text,
	"code" text,
	"since" timestamp with time zone NOT NULL,
	"until" timestamp with time zone,
	"epoch" integer NOT NULL,
	"ended_at" timestamp with time zone,
	"ended_by" text,
	"trial_ended_at" timestamp with time zone,
	"trial_refusals" integer DEFAULT 0 NOT NULL,
	"next_check_at" timestamp with time zone,
	"checks" integer DEFAULT 0 NOT NULL,
	"check_refused_at" timestamp with time zone,
	CONSTRAINT "account_holds_kind_known" CHECK (kind in ('key_refused', 'payment_required', 'access_denied', 'operator'))
);
--> statement-breakpoint
CREATE TABLE "onetake"."accounts" (
	"name" text PRIMARY KEY NOT NULL,
	"provider" text NOT NULL,
	"requests_per_minute" integer NOT NULL,
	"max_concurrent_generations" integer NOT NULL,
	"paused_until" timestamp with time zone,
	"pause_kind" text,
	"capacity_refusals" integer DEFAULT 0 NOT NULL,
	"hold_epoch" integer DEFAULT 0 NOT NULL,
	"revision" integer DEFAULT 1 NOT NULL,
	"created_at" timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
	CONSTRAINT "accounts_name_is_plain" CHECK (name ~ '^[A-Za-z0-9_.-]{1,63}$'),
	CONSTRAINT "accounts_requests_per_minute_in_bounds" CHECK (requests_per_minute between 1 and 1000000),
	CONSTRAINT "accounts_max_concurrent_generations_in_bounds" CHECK (max_concurrent_generations between 1 and 100000),
	CONSTRAINT "accounts_pause_has_a_kind" CHECK ((paused_until is null) = (pause_kind is null)),
	CONSTRAINT "accounts_pause_kind_known" CHECK (pause_kind in ('rate', 'concurrency'))
);
--> statement-breakpoint
CREATE TABLE "onetake"."assets" (
	"request_id" uuid NOT NULL,
	"index" integer NOT NULL,
	"kind" text NOT NULL,
	"variant" integer DEFAULT 0 NOT NULL,
	"label" text,
	"content_type" text,
	"bytes" bigint,
	"sha256" text,
	"location" text NOT NULL,
	"stored_at" timestamp with time zone,
	CONSTRAINT "assets_pk" PRIMARY KEY("request_id","index"),
	CONSTRAINT "assets_stored_means_verified" CHECK (stored_at is null or (bytes is not null and sha256 is not null and sha256 ~ '^[0-9a-f]{64}$'))
);
--> statement-breakpoint
CREATE TABLE "onetake"."attempt_evidence" (
	"id" bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY (sequence name "onetake"."attempt_evidence_id_seq" INCREMENT BY 1 MINVALUE 1 MAXVALUE 9223372036854775807 START WITH 1 CACHE 1),
	"attempt_id" uuid NOT NULL,
	"seen_at" timestamp with time zone NOT NULL,
	"source" text NOT NULL,
	"phase" text,
	"http_status" integer,
	"error_code" text,
	"certainty" text NOT NULL,
	"provider_task_id" text,
	"withdrawn_at" timestamp with time zone,
	CONSTRAINT "attempt_evidence_source_known" CHECK (source in ('late_answer', 'operator')),
	CONSTRAINT "attempt_evidence_certainty_known" CHECK (certainty in ('accepted', 'refused', 'unsent', 'unknown'))
);
--> statement-breakpoint
CREATE TABLE "onetake"."circuit_breaker_transitions" (
	"id" bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY (sequence name "onetake"."circuit_breaker_transitions_id_seq" INCREMENT BY 1 MINVALUE 1 MAXVALUE 9223372036854775807 START WITH 1 CACHE 1),
	"at" timestamp with time zone NOT NULL,
	"breaker_name" text NOT NULL,
	"layer" text DEFAULT 'state' NOT NULL,
	"number" integer NOT NULL,
	"previous_state" text NOT NULL,
	"next_state" text NOT NULL,
	"cause" text NOT NULL,
	"outcome_kind" text,
	"http_status" integer,
	"failures" integer,
	"opened_at" timestamp with time zone,
	"retry_at" timestamp with time zone,
	"request_id" uuid,
	"provider_task_id" text,
	"generation" integer NOT NULL,
	"actor" text,
	"shadow" boolean DEFAULT false NOT NULL,
	"announced" boolean DEFAULT false NOT NULL,
	CONSTRAINT "circuit_breaker_transitions_number_once" UNIQUE("breaker_name","layer","number"),
	CONSTRAINT "circuit_breaker_transitions_layer_known" CHECK (layer in ('state', 'override')),
	CONSTRAINT "circuit_breaker_transitions_number_positive" CHECK (number >= 1)
);
--> statement-breakpoint
CREATE TABLE "onetake"."circuit_breakers" (
	"name" text PRIMARY KEY NOT NULL,
	"state" text DEFAULT 'closed' NOT NULL,
	"generation" integer DEFAULT 1 NOT NULL,
	"consecutive_failures" integer DEFAULT 0 NOT NULL,
	"failure_threshold" integer NOT NULL,
	"cooldown_ms" integer NOT NULL,
	"cooldown_growth" double precision DEFAULT 1 NOT NULL,
	"max_cooldown_ms" integer DEFAULT 600000 NOT NULL,
	"jitter" double precision DEFAULT 0 NOT NULL,
	"shadow" boolean DEFAULT false NOT NULL,
	"failed_probes" integer DEFAULT 0 NOT NULL,
	"ramp_acceptances" integer,
	"opened_at" timestamp with time zone,
	"retry_at" timestamp with time zone,
	"probe_attempt_id" uuid,
	"probe_request_id" uuid,
	"override" text,
	"override_actor" text,
	"override_reason" text,
	"override_expires_at" timestamp with time zone,
	"transitions" integer DEFAULT 0 NOT NULL,
	"override_transitions" integer DEFAULT 0 NOT NULL,
	"revision" integer DEFAULT 1 NOT NULL,
	"created_at" timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
	CONSTRAINT "circuit_breakers_name_is_provider_and_operation" CHECK (name ~ '^[A-Za-z0-9_.-]{1,63}/[A-Za-z0-9_.-]{1,63}$'),
	CONSTRAINT "circuit_breakers_failure_threshold_in_bounds" CHECK (failure_threshold between 1 and 1000),
	CONSTRAINT "circuit_breakers_cooldown_ms_in_bounds" CHECK (cooldown_ms between 100 and 86400000),
	CONSTRAINT "circuit_breakers_cooldown_growth_in_bounds" CHECK (cooldown_growth between 1 and 10),
	CONSTRAINT "circuit_breakers_max_cooldown_ms_in_bounds" CHECK (max_cooldown_ms between cooldown_ms and 86400000),
	CONSTRAINT "circuit_breakers_jitter_in_bounds" CHECK (jitter between 0 and 0.5),
	CONSTRAINT "circuit_breakers_override_has_an_actor" CHECK (case when override is null then num_nonnulls(override_actor, override_reason, override_expires_at) = 0
          else num_nonnulls(override_actor, override_reason) = 2 end),
	CONSTRAINT "circuit_breakers_ramp_only_closed" CHECK (ramp_acceptances is null or state = 'closed'),
	CONSTRAINT "circuit_breakers_state_known" CHECK (state in ('closed', 'open', 'half_open')),
	CONSTRAINT "circuit_breakers_state_has_its_columns" CHECK (case state
          when 'closed' then num_nonnulls(opened_at, retry_at, probe_attempt_id, probe_request_id) = 0
          when 'open' then num_nonnulls(opened_at, retry_at) = 2 and retry_at >= opened_at
            and num_nonnulls(probe_attempt_id, probe_request_id) = 0 and consecutive_failures = 0
          else num_nonnulls(opened_at, retry_at) = 0 and consecutive_failures = 0
            and probe_attempt_id is not null and probe_request_id is not null
        end),
	CONSTRAINT "circuit_breakers_override_known" CHECK (override in ('forced_open', 'forced_closed'))
);
--> statement-breakpoint
CREATE TABLE "onetake"."followed_tasks" (
	"request_id" uuid NOT NULL,
	"provider_task_id" text NOT NULL,
	"account" text NOT NULL,
	"attempt_id" uuid NOT NULL,
	"since" timestamp with time zone NOT NULL,
	"next_look_at" timestamp with time zone,
	"look_errors" integer DEFAULT 0 NOT NULL,
	"follow_until" timestamp with time zone NOT NULL,
	"outcome" text,
	"finished_at" timestamp with time zone,
	"refunded" boolean,
	CONSTRAINT "followed_tasks_pk" PRIMARY KEY("request_id","provider_task_id"),
	CONSTRAINT "followed_tasks_outcome_known" CHECK (outcome in ('succeeded', 'failed')),
	CONSTRAINT "followed_tasks_finished_has_an_outcome" CHECK ((outcome is null) = (finished_at is null))
);
--> statement-breakpoint
CREATE TABLE "onetake"."generation_requests" (
	"id" uuid PRIMARY KEY DEFAULT gen_random_uuid() NOT NULL,
	"account" text NOT NULL,
	"operation" text NOT NULL,
	"request_key" text NOT NULL,
	"state" text DEFAULT 'queued' NOT NULL,
	"state_reason" text,
	"failure_reason" text,
	"failure_code" text,
	"result_status" text,
	"charge" text DEFAULT 'none' NOT NULL,
	"fields" jsonb NOT NULL,
	"payload_digest" text NOT NULL,
	"mode" text DEFAULT 'async' NOT NULL,
	"provider_task_id" text,
	"stream_attempt_id" uuid,
	"submissions" integer DEFAULT 0 NOT NULL,
	"not_before" timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
	"submit_before" timestamp with time zone,
	"accepted_at" timestamp with time zone,
	"next_poll_at" timestamp with time zone,
	"poll_errors" integer DEFAULT 0 NOT NULL,
	"poll_trouble" text,
	"empty_reads" integer DEFAULT 0 NOT NULL,
	"provider_finished_at" timestamp with time zone,
	"reader_lease_until" timestamp with time zone,
	"reader_missed_at" timestamp with time zone,
	"hand_off_bytes" bigint,
	"hand_off_total_bytes" bigint,
	"supersedes" uuid,
	"fair_group" text DEFAULT '' NOT NULL,
	"priority" integer DEFAULT 0 NOT NULL,
	"round" integer DEFAULT 0 NOT NULL,
	"refunded" boolean,
	"refund_watch_until" timestamp with time zone,
	"warnings" text[] DEFAULT '{}' NOT NULL,
	"document" jsonb,
	"job_due" boolean DEFAULT false NOT NULL,
	"settled_notice_due" boolean DEFAULT false NOT NULL,
	"recovered_at" timestamp with time zone,
	"attention" text,
	"attention_since" timestamp with time zone,
	"created_at" timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
	"settled_at" timestamp with time zone,
	CONSTRAINT "generation_requests_request_key_once" UNIQUE("account","request_key"),
	CONSTRAINT "generation_requests_state_known" CHECK (state in ('queued', 'submitting', 'accepted', 'succeeded', 'failed', 'rejected', 'ambiguous', 'cancelled', 'expired')),
	CONSTRAINT "generation_requests_request_key_length" CHECK (length(request_key) between 1 and 255),
	CONSTRAINT "generation_requests_payload_digest_is_sha256" CHECK (payload_digest ~ '^[0-9a-f]{64}$'),
	CONSTRAINT "generation_requests_fields_are_an_object" CHECK (jsonb_typeof(fields) = 'object'),
	CONSTRAINT "generation_requests_charge_known" CHECK (charge in ('none', 'possible', 'charged', 'refunded')),
	CONSTRAINT "generation_requests_priority_bounded" CHECK (priority between -100 and 100),
	CONSTRAINT "generation_requests_mode_known" CHECK (mode in ('async', 'stream')),
	CONSTRAINT "generation_requests_failed_has_a_reason" CHECK ((state = 'failed') = (failure_reason is not null) and failure_reason in ('provider', 'stream_interrupted', 'abandoned')),
	CONSTRAINT "generation_requests_only_a_failure_has_its_code" CHECK (failure_code is null or state = 'failed'),
	CONSTRAINT "generation_requests_succeeded_has_a_result" CHECK ((state = 'succeeded') = (result_status is not null) and result_status in ('stored', 'linked', 'empty', 'lost')),
	CONSTRAINT "generation_requests_settled_when_terminal" CHECK ((settled_at is not null) = (state in ('succeeded', 'failed', 'rejected', 'cancelled', 'expired'))),
	CONSTRAINT "generation_requests_accepted_has_a_task" CHECK (state not in ('accepted', 'succeeded') or (accepted_at is not null and num_nonnulls(provider_task_id, stream_attempt_id) = 1)),
	CONSTRAINT "generation_requests_submitting_has_an_attempt" CHECK (state <> 'submitting' or submissions >= 1),
	CONSTRAINT "generation_requests_ambiguous_has_a_reason" CHECK (state <> 'ambiguous' or state_reason is not null),
	CONSTRAINT "generation_requests_only_tasks_are_polled" CHECK (next_poll_at is null or (state in ('accepted', 'failed') and provider_task_id is not null)),
	CONSTRAINT "generation_requests_only_streams_are_read" CHECK ((reader_lease_until is not null) = (state = 'accepted' and stream_attempt_id is not null)),
	CONSTRAINT "generation_requests_streams_were_asked_for" CHECK (stream_attempt_id is null or mode = 'stream'),
	CONSTRAINT "generation_requests_attention_has_a_start" CHECK ((attention is null) = (attention_since is null))
);
--> statement-breakpoint
CREATE TABLE "onetake"."installation" (
	"one" boolean PRIMARY KEY DEFAULT true NOT NULL,
	"id" uuid DEFAULT gen_random_uuid() NOT NULL,
	"revision" bigint NOT NULL,
	"system_identifier" bigint,
	"timeline" integer,
	"database_oid" bigint NOT NULL,
	"database_name" text NOT NULL,
	"table_oid" bigint NOT NULL,
	"confirmed_at" timestamp with time zone NOT NULL,
	"confirmed_by" text NOT NULL,
	"reason" text NOT NULL,
	"doubt" text,
	"doubted_at" timestamp with time zone,
	"doubted_by" text,
	"freeze_before" timestamp with time zone,
	CONSTRAINT "installation_is_one_row" CHECK (one),
	CONSTRAINT "installation_doubt_known" CHECK (doubt in ('stepped_back', 'intent_lost', 'freezing')),
	CONSTRAINT "installation_doubt_is_whole" CHECK (num_nulls(doubt, doubted_at, doubted_by) in (0, 3) and (freeze_before is not null) = coalesce(doubt = 'freezing', false))
);
--> statement-breakpoint
CREATE TABLE "onetake"."operator_actions" (
	"id" bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY (sequence name "onetake"."operator_actions_id_seq" INCREMENT BY 1 MINVALUE 1 MAXVALUE 9223372036854775807 START WITH 1 CACHE 1),
	"at" timestamp with time zone NOT NULL,
	"actor" text NOT NULL,
	"session_user" text NOT NULL,
	"action" text NOT NULL,
	"subject" text NOT NULL,
	"reason" text NOT NULL,
	CONSTRAINT "operator_actions_name_an_actor" CHECK (btrim(actor) <> ''),
	CONSTRAINT "operator_actions_give_a_reason" CHECK (btrim(reason) <> '')
);
--> statement-breakpoint
CREATE TABLE "onetake"."poll_leases" (
	"request_id" uuid PRIMARY KEY NOT NULL,
	"lease_expires_at" timestamp with time zone NOT NULL
);
--> statement-breakpoint
CREATE TABLE "onetake"."read_pauses" (
	"account" text PRIMARY KEY NOT NULL,
	"since" timestamp with time zone,
	"paused_until" timestamp with time zone NOT NULL,
	"probe_until" timestamp with time zone,
	"failures" integer NOT NULL,
	"reason" text NOT NULL
);
--> statement-breakpoint
CREATE TABLE "onetake"."settled_consumer" (
	"one" boolean PRIMARY KEY DEFAULT true NOT NULL,
	"since" timestamp with time zone NOT NULL,
	"seen_at" timestamp with time zone NOT NULL,
	CONSTRAINT "settled_consumer_is_one_row" CHECK (one)
);
--> statement-breakpoint
CREATE TABLE "onetake"."submission_attempts" (
	"id" uuid PRIMARY KEY NOT NULL,
	"request_id" uuid NOT NULL,
	"attempt" integer NOT NULL,
	"account" text NOT NULL,
	"operation" text NOT NULL,
	"breaker_name" text NOT NULL,
	"generation" integer NOT NULL,
	"override" text,
	"hold_epoch" integer NOT NULL,
	"round" integer,
	"is_probe" boolean NOT NULL,
	"worker" text NOT NULL,
	"started_at" timestamp with time zone NOT NULL,
	"lease_expires_at" timestamp with time zone NOT NULL,
	"window_until" timestamp with time zone NOT NULL,
	"slot_until" timestamp with time zone NOT NULL,
	"slot_freed_at" timestamp with time zone,
	"quarantine_until" timestamp with time zone NOT NULL,
	"closed_at" timestamp with time zone,
	"settled_at" timestamp with time zone,
	"settled_by" text,
	"override_at_settle" text,
	"phase" text,
	"headers_sent" boolean,
	"headers_sent_proof" text,
	"http_status" integer,
	"error_code" text,
	"health" text,
	"health_applied_at" timestamp with time zone,
	"health_effect" text,
	"certainty" text,
	"reason" text,
	"provider_task_id" text,
	"refunded" boolean,
	"stream_ended_at" timestamp with time zone,
	"stream_end" text,
	"stream_health" text,
	"stream_health_applied_at" timestamp with time zone,
	"stream_health_effect" text,
	"stream_unclaimed_at" timestamp with time zone,
	"override_at_stream_end" text,
	CONSTRAINT "submission_attempts_number_once" UNIQUE("request_id","attempt"),
	CONSTRAINT "submission_attempts_health_known" CHECK (health in ('success', 'dependency_failure', 'capacity_signal', 'request_or_account_failure', 'unknown_failure', 'none')),
	CONSTRAINT "submission_attempts_certainty_known" CHECK (certainty in ('accepted', 'refused', 'unsent', 'unknown')),
	CONSTRAINT "submission_attempts_phase_known" CHECK (phase in ('unsent', 'sent', 'response_started', 'answered', 'lease_over')),
	CONSTRAINT "submission_attempts_headers_sent_proof_known" CHECK (headers_sent_proof in ('oracle', 'error_code', 'kept_back', 'answer', 'provider')),
	CONSTRAINT "submission_attempts_headers_sent_is_proven" CHECK ((headers_sent is null) = (headers_sent_proof is null)),
	CONSTRAINT "submission_attempts_unsent_sent_no_headers" CHECK (certainty <> 'unsent' or headers_sent is not true),
	CONSTRAINT "submission_attempts_settled_by_known" CHECK (settled_by in ('worker', 'rescue')),
	CONSTRAINT "submission_attempts_settled_as_a_whole" CHECK (num_nulls(settled_at, settled_by, phase, health, certainty, reason) in (0, 6)),
	CONSTRAINT "submission_attempts_health_applied_after_settle" CHECK ((health_applied_at is null) = (health_effect is null) and (health_applied_at is null or settled_at is not null)),
	CONSTRAINT "submission_attempts_error_code_is_plain" CHECK (error_code ~ '^[A-Za-z0-9_.:-]{1,64}$'),
	CONSTRAINT "submission_attempts_stream_end_is_plain" CHECK (stream_end ~ '^[A-Za-z0-9_.:-]{1,64}$'),
	CONSTRAINT "submission_attempts_stream_health_known" CHECK (stream_health in ('dependency_failure', 'none')),
	CONSTRAINT "submission_attempts_stream_ends_as_a_whole" CHECK (num_nulls(stream_ended_at, stream_end, stream_health) in (0, 3) and (stream_ended_at is null or settled_at is not null)),
	CONSTRAINT "submission_attempts_stream_health_applied_after_end" CHECK ((stream_health_applied_at is null) = (stream_health_effect is null) and (stream_health_applied_at is null or stream_ended_at is not null))
);
--> statement-breakpoint
ALTER TABLE "onetake"."account_holds" ADD CONSTRAINT "account_holds_account_fk" FOREIGN KEY ("account") REFERENCES "onetake"."accounts"("name") ON DELETE no action ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "onetake"."assets" ADD CONSTRAINT "assets_request_fk" FOREIGN KEY ("request_id") REFERENCES "onetake"."generation_requests"("id") ON DELETE no action ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "onetake"."attempt_evidence" ADD CONSTRAINT "attempt_evidence_attempt_fk" FOREIGN KEY ("attempt_id") REFERENCES "onetake"."submission_attempts"("id") ON DELETE no action ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "onetake"."circuit_breaker_transitions" ADD CONSTRAINT "circuit_breaker_transitions_breaker_fk" FOREIGN KEY ("breaker_name") REFERENCES "onetake"."circuit_breakers"("name") ON DELETE no action ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "onetake"."followed_tasks" ADD CONSTRAINT "followed_tasks_request_fk" FOREIGN KEY ("request_id") REFERENCES "onetake"."generation_requests"("id") ON DELETE no action ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "onetake"."followed_tasks" ADD CONSTRAINT "followed_tasks_attempt_fk" FOREIGN KEY ("attempt_id") REFERENCES "onetake"."submission_attempts"("id") ON DELETE no action ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "onetake"."generation_requests" ADD CONSTRAINT "generation_requests_account_fk" FOREIGN KEY ("account") REFERENCES "onetake"."accounts"("name") ON DELETE no action ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "onetake"."generation_requests" ADD CONSTRAINT "generation_requests_supersedes_fk" FOREIGN KEY ("supersedes") REFERENCES "onetake"."generation_requests"("id") ON DELETE no action ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "onetake"."read_pauses" ADD CONSTRAINT "read_pauses_account_fk" FOREIGN KEY ("account") REFERENCES "onetake"."accounts"("name") ON DELETE no action ON UPDATE no action;--> statement-breakpoint
ALTER TABLE "onetake"."submission_attempts" ADD CONSTRAINT "submission_attempts_request_fk" FOREIGN KEY ("request_id") REFERENCES "onetake"."generation_requests"("id") ON DELETE no action ON UPDATE no action;--> statement-breakpoint
CREATE UNIQUE INDEX "account_holds_live" ON "onetake"."account_holds" USING btree ("account",coalesce(operation, ''),"kind") WHERE ended_at is null;--> statement-breakpoint
CREATE INDEX "account_holds_open" ON "onetake"."account_holds" USING btree ("account") WHERE trial_ended_at is null;--> statement-breakpoint
CREATE INDEX "attempt_evidence_by_attempt" ON "onetake"."attempt_evidence" USING btree ("attempt_id");--> statement-breakpoint
CREATE INDEX "circuit_breaker_transitions_unannounced" ON "onetake"."circuit_breaker_transitions" USING btree ("id") WHERE not announced;--> statement-breakpoint
CREATE INDEX "followed_tasks_by_task" ON "onetake"."followed_tasks" USING btree ("account","provider_task_id");--> statement-breakpoint
CREATE INDEX "followed_tasks_due" ON "onetake"."followed_tasks" USING btree ("next_look_at") WHERE next_look_at is not null;--> statement-breakpoint
CREATE UNIQUE INDEX "generation_requests_task_once" ON "onetake"."generation_requests" USING btree ("account","provider_task_id") WHERE provider_task_id is not null;--> statement-breakpoint
CREATE INDEX "generation_requests_dispatch" ON "onetake"."generation_requests" USING btree ("account","operation","not_before") WHERE state = 'queued';--> statement-breakpoint
CREATE INDEX "generation_requests_rounds" ON "onetake"."generation_requests" USING btree ("account","operation","fair_group",sign(priority),"round") WHERE state = 'queued';--> statement-breakpoint
CREATE INDEX "generation_requests_deadlines" ON "onetake"."generation_requests" USING btree ("submit_before") WHERE state = 'queued' and submit_before is not null;--> statement-breakpoint
CREATE INDEX "generation_requests_job_due" ON "onetake"."generation_requests" USING btree ("not_before") WHERE job_due;--> statement-breakpoint
CREATE INDEX "generation_requests_settled_notice_due" ON "onetake"."generation_requests" USING btree ("settled_at") WHERE settled_notice_due;--> statement-breakpoint
CREATE INDEX "generation_requests_due_polls" ON "onetake"."generation_requests" USING btree ("next_poll_at") WHERE next_poll_at is not null;--> statement-breakpoint
CREATE INDEX "generation_requests_reader_leases" ON "onetake"."generation_requests" USING btree ("reader_lease_until") WHERE reader_lease_until is not null;--> statement-breakpoint
CREATE INDEX "generation_requests_ambiguous" ON "onetake"."generation_requests" USING btree ("created_at") WHERE state = 'ambiguous';--> statement-breakpoint
CREATE INDEX "generation_requests_attention" ON "onetake"."generation_requests" USING btree ("attention_since") WHERE attention is not null;--> statement-breakpoint
CREATE INDEX "generation_requests_not_refunded" ON "onetake"."generation_requests" USING btree ("settled_at") WHERE state in ('failed', 'rejected', 'cancelled', 'expired') and refunded is not true and (provider_task_id is not null or stream_attempt_id is not null);--> statement-breakpoint
CREATE INDEX "generation_requests_newest" ON "onetake"."generation_requests" USING btree ("created_at");--> statement-breakpoint
CREATE INDEX "operator_actions_by_subject" ON "onetake"."operator_actions" USING btree ("subject");--> statement-breakpoint
CREATE INDEX "submission_attempts_windows" ON "onetake"."submission_attempts" USING btree ("account","window_until");--> statement-breakpoint
CREATE INDEX "submission_attempts_rounds" ON "onetake"."submission_attempts" USING btree ("account","operation","round");--> statement-breakpoint
CREATE INDEX "submission_attempts_slots" ON "onetake"."submission_attempts" USING btree ("account","slot_until") WHERE slot_freed_at is null;--> statement-breakpoint
CREATE INDEX "submission_attempts_in_flight" ON "onetake"."submission_attempts" USING btree ("breaker_name","generation") WHERE settled_at is null;--> statement-breakpoint
CREATE INDEX "submission_attempts_probes" ON "onetake"."submission_attempts" USING btree ("breaker_name","account","started_at") WHERE is_probe;--> statement-breakpoint
CREATE INDEX "submission_attempts_unclaimed_streams" ON "onetake"."submission_attempts" USING btree ("stream_unclaimed_at") WHERE stream_unclaimed_at is not null;--> statement-breakpoint
CREATE INDEX "submission_attempts_leases" ON "onetake"."submission_attempts" USING btree ("lease_expires_at") WHERE settled_at is null;--> statement-breakpoint
CREATE INDEX "submission_attempts_health_due" ON "onetake"."submission_attempts" USING btree ("settled_at") WHERE settled_at is not null and health_applied_at is null;--> statement-breakpoint
CREATE INDEX "submission_attempts_stream_health_due" ON "onetake"."submission_attempts" USING btree ("stream_ended_at") WHERE stream_ended_at is not null and stream_health_applied_at is null;