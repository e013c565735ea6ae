-- What a lineage summary of the whole log reads instead of every ruling: in which tasks and runs each protocol was used,
-- and what those tasks of all runs at rest show together.
SELECT apc_guard.maintain('tables of the tasks and runs in which protocols were used');

-- One row a protocol, task of a run and verdict ('' = accepted), however often it was transferred there.
CREATE TABLE apc_log.protocol_tasks (
    protocol_id text NOT NULL,
    run_id text NOT NULL,
    task_id text NOT NULL,
    refusal_code text NOT NULL,
    shard integer NOT NULL,
    PRIMARY KEY (protocol_id, run_id, task_id, refusal_code, shard)
);
-- One row a protocol, run and verdict; the last verdict of the kind.
CREATE TABLE apc_log.protocol_runs (
    protocol_id text NOT NULL,
    run_id text NOT NULL,
    refusal_code text NOT NULL,
    shard integer NOT NULL,
    last_judged_at timestamptz NOT NULL,
    PRIMARY KEY (protocol_id, run_id, refusal_code, shard)
) WITH (fillfactor = 70);
-- The last verdict on a TRANSFER or an EVAL in each run, by shard. Up to `summed_seq` it is in the sums below.
CREATE TABLE apc_log.run_changes (
    run_id text NOT NULL,
    shard integer NOT NULL,
    seq bigint NOT NULL,
    judged_at timestamptz NOT NULL,
    summed_seq bigint,
    PRIMARY KEY (run_id, shard)
);
CREATE INDEX run_changes_unsummed ON apc_log.run_changes (judged_at, run_id) WHERE summed_seq IS DISTINCT FROM seq;

-- Sums over runs at rest, by protocol, task and the verdicts that the protocol had in the task of a run ({''} = accepted).
-- The writer does not keep them: function sum_run adds a run when it rests. A run that changes later is read from the
-- counts, and what it has added is taken off, until it rests again.
CREATE TABLE apc_log.protocol_sums (
    protocol_id text NOT NULL,
    task_id text NOT NULL,
    refusal_codes text[] NOT NULL,
    tasks bigint NOT NULL,
    evals bigint NOT NULL,
    outcome_billionths bigint NOT NULL,
    drift_evals bigint NOT NULL,
    drift_billionths bigint NOT NULL,
    PRIMARY KEY (protocol_id, task_id, refusal_codes)
) WITH (fillfactor = 70);
-- What each run has added to them.
CREATE TABLE apc_log.summed_uses (
    run_id text NOT NULL,
    protocol_id text NOT NULL,
    task_id text NOT NULL,
    refusal_codes text[] NOT NULL,
    evals bigint NOT NULL,
    outcome_billionths bigint NOT NULL,
    drift_evals bigint NOT NULL,
    drift_billionths bigint NOT NULL,
    PRIMARY KEY (run_id, protocol_id, task_id)
);
SELECT apc_guard.exempt('apc_log.protocol_tasks');
SELECT apc_guard.exempt('apc_log.run_changes');
SELECT apc_guard.exempt('apc_log.protocol_sums');
SELECT apc_guard.exempt('apc_log.summed_uses');
SELECT apc_guard.exempt('apc_log.protocol_runs');

INSERT INTO apc_log.protocol_tasks
SELECT DISTINCT protocol_id, run_id, task_id, coalesce(refusal_code, ''), shard FROM apc_log.transfer_rulings;
INSERT INTO apc_log.protocol_runs
SELECT protocol_id, run_id, coalesce(refusal_code, ''), shard, max(judged_at)
FROM apc_log.transfer_rulings GROUP BY 1, 2, 3, 4;

-- The verdicts on TRANSFERs and EVALs, whatever they are.
CREATE VIEW apc_log.counted_verdicts AS
SELECT shard, seq, judged_at, run_id FROM apc_log.agent_packets
WHERE packet_type IN ('TRANSFER', 'EVAL') AND verdict <> 'held'
UNION ALL
SELECT hop.shard, hop.seq, hop.occurred_at[1], packet.run_id
FROM apc_log.packet_events AS hop
JOIN apc_log.packet_ids AS named USING (session_id, packet_id)
JOIN apc_log.agent_packets AS packet ON packet.shard = named.shard AND packet.seq = named.seq
WHERE hop.recipient = '' AND hop.from_state = 'SCHEMA_VALIDATED' AND packet.packet_type IN ('TRANSFER', 'EVAL');
INSERT INTO apc_log.run_changes (run_id, shard, seq, judged_at)
SELECT run_id, shard, max(seq), max(judged_at) FROM apc_log.counted_verdicts GROUP BY run_id, shard;

-- What the runs at rest must have added: the same from the counts.
CREATE VIEW apc_log.uses_of_runs AS
SELECT used.run_id, used.protocol_id, used.task_id, used.refusal_codes, own.evals, own.outcome_billionths,
       own.drift_evals, own.drift_billionths
FROM (
    SELECT run_id, protocol_id, task_id, array_agg(DISTINCT coalesce(refusal_code, '')) AS refusal_codes
    FROM apc_log.transfer_rulings GROUP BY run_id, protocol_id, task_id
) AS used
JOIN apc_log.task_scores AS own USING (run_id, task_id);
CREATE VIEW apc_log.unsummed_runs AS
SELECT run_id, max(judged_at) AS judged_at FROM apc_log.run_changes WHERE summed_seq IS DISTINCT FROM seq GROUP BY run_id;
DROP INDEX apc_log.transfer_rulings_uses, apc_log.transfer_rulings_run;
-- Pages of the TRANSFERs of one protocol or of one run, the newest first.
CREATE INDEX transfer_rulings_protocol ON apc_log.transfer_rulings (protocol_id, judged_at, shard, seq);
CREATE INDEX transfer_rulings_run ON apc_log.transfer_rulings (run_id, judged_at, shard, seq);

DO $$
BEGIN
    GRANT SELECT ON apc_log.protocol_tasks, apc_log.protocol_runs, apc_log.run_changes, apc_log.protocol_sums,
        apc_log.summed_uses, apc_log.counted_verdicts, apc_log.uses_of_runs, apc_log.unsummed_runs
        TO apc_reader, apc_writer;
    GRANT INSERT, UPDATE ON apc_log.protocol_tasks, apc_log.protocol_runs, apc_log.run_changes, apc_log.protocol_sums,
        apc_log.summed_uses TO apc_writer;
EXCEPTION
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'roles were not granted their rights (%): connect as %', SQLERRM, current_user;
END $$;

-- As in 0105_analytics, and where protocols were used and runs have changed.
CREATE OR REPLACE FUNCTION apc_log.tally(of_shard integer, first_seq bigint, last_seq bigint) RETURNS void
LANGUAGE plpgsql SET plan_cache_mode = force_custom_plan SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    INSERT INTO apc_log.task_tallies AS tally
        (shard, run_id, task_id, evals, outcome_billionths, drift_evals, drift_billionths)
    SELECT of_shard, run_id, task_id, count(outcome), coalesce(sum(apc_log.billionths(outcome)), 0),
           count(drift_risk), coalesce(sum(apc_log.billionths(drift_risk)), 0)
    FROM apc_log.eval_metrics
    WHERE shard = of_shard AND seq BETWEEN first_seq AND last_seq
    GROUP BY run_id, task_id
    ON CONFLICT (run_id, task_id, shard) DO UPDATE SET
        evals = tally.evals + excluded.evals,
        outcome_billionths = tally.outcome_billionths + excluded.outcome_billionths,
        drift_evals = tally.drift_evals + excluded.drift_evals,
        drift_billionths = tally.drift_billionths + excluded.drift_billionths;

    WITH ruled AS (
        INSERT INTO apc_log.transfer_rulings
        SELECT * FROM apc_log.judged_transfers WHERE shard = of_shard AND seq BETWEEN first_seq AND last_seq
        RETURNING *
    ), by_task AS (
        INSERT INTO apc_log.task_tallies AS tally
            (shard, run_id, task_id, transfers, accepted, cross_transfers, cross_accepted)
        SELECT of_shard, run_id, task_id, count(*), count(*) FILTER (WHERE is_accepted),
               count(*) FILTER (WHERE cross_use_case), count(*) FILTER (WHERE cross_use_case AND is_accepted)
        FROM ruled GROUP BY run_id, task_id
        ON CONFLICT (run_id, task_id, shard) DO UPDATE SET
            transfers = tally.transfers + excluded.transfers,
            accepted = tally.accepted + excluded.accepted,
            cross_transfers = tally.cross_transfers + excluded.cross_transfers,
            cross_accepted = tally.cross_accepted + excluded.cross_accepted
    ), in_tasks AS (
        INSERT INTO apc_log.protocol_tasks
        SELECT DISTINCT protocol_id, run_id, task_id, coalesce(refusal_code, ''), of_shard FROM ruled
        ON CONFLICT DO NOTHING
    ), in_runs AS (
        INSERT INTO apc_log.protocol_runs AS known
        SELECT protocol_id, run_id, coalesce(refusal_code, ''), of_shard, max(judged_at) FROM ruled
        GROUP BY protocol_id, run_id, coalesce(refusal_code, '')
        ON CONFLICT (protocol_id, run_id, refusal_code, shard) DO UPDATE SET
            last_judged_at = greatest(known.last_judged_at, excluded.last_judged_at)
    )
    INSERT INTO apc_log.protocol_tallies AS tally
    SELECT of_shard, protocol_id, transfer_mode, cross_use_case, coalesce(refusal_code, ''), count(*),
           count(sender_score), coalesce(sum(apc_log.billionths(sender_score)), 0),
           count(receiver_score), coalesce(sum(apc_log.billionths(receiver_score)), 0)
    FROM ruled GROUP BY protocol_id, transfer_mode, cross_use_case, coalesce(refusal_code, '')
    ON CONFLICT (protocol_id, transfer_mode, cross_use_case, refusal_code, shard) DO UPDATE SET
        transfers = tally.transfers + excluded.transfers,
        sender_scores = tally.sender_scores + excluded.sender_scores,
        sender_billionths = tally.sender_billionths + excluded.sender_billionths,
        receiver_scores = tally.receiver_scores + excluded.receiver_scores,
        receiver_billionths = tally.receiver_billionths + excluded.receiver_billionths;

    INSERT INTO apc_log.run_changes AS known (run_id, shard, seq, judged_at)
    SELECT run_id, of_shard, max(seq), max(judged_at) FROM apc_log.counted_verdicts
    WHERE shard = of_shard AND seq BETWEEN first_seq AND last_seq
    GROUP BY run_id
    ON CONFLICT (run_id, shard) DO UPDATE SET
        seq = greatest(known.seq, excluded.seq), judged_at = greatest(known.judged_at, excluded.judged_at);
END $$;

-- Adds a run to the sums, in the place of what it had added before. The seqs are read first: when the counts move on
-- meanwhile, the run stays unsummed, and exactly what was added is taken off again.
CREATE FUNCTION apc_log.sum_run(of_run text) RETURNS void
LANGUAGE plpgsql SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    seen constant jsonb := (SELECT jsonb_object_agg(shard, seq) FROM apc_log.run_changes WHERE run_id = of_run);
BEGIN
    UPDATE apc_log.protocol_sums AS total SET
        tasks = total.tasks - former.tasks, evals = total.evals - former.evals,
        outcome_billionths = total.outcome_billionths - former.outcome_billionths,
        drift_evals = total.drift_evals - former.drift_evals,
        drift_billionths = total.drift_billionths - former.drift_billionths
    FROM (
        SELECT protocol_id, task_id, refusal_codes, count(*) AS tasks, sum(evals) AS evals,
               sum(outcome_billionths) AS outcome_billionths, sum(drift_evals) AS drift_evals,
               sum(drift_billionths) AS drift_billionths
        FROM apc_log.summed_uses WHERE run_id = of_run GROUP BY protocol_id, task_id, refusal_codes
    ) AS former
    WHERE total.protocol_id = former.protocol_id AND total.task_id = former.task_id
      AND total.refusal_codes = former.refusal_codes;

    INSERT INTO apc_log.summed_uses AS former SELECT * FROM apc_log.uses_of_runs WHERE run_id = of_run
    ON CONFLICT (run_id, protocol_id, task_id) DO UPDATE SET
        refusal_codes = excluded.refusal_codes, evals = excluded.evals,
        outcome_billionths = excluded.outcome_billionths, drift_evals = excluded.drift_evals,
        drift_billionths = excluded.drift_billionths;

    INSERT INTO apc_log.protocol_sums AS total
    SELECT protocol_id, task_id, refusal_codes, count(*), sum(evals), sum(outcome_billionths), sum(drift_evals),
           sum(drift_billionths)
    FROM apc_log.summed_uses WHERE run_id = of_run GROUP BY protocol_id, task_id, refusal_codes
    ON CONFLICT (protocol_id, task_id, refusal_codes) DO UPDATE SET
        tasks = total.tasks + excluded.tasks, evals = total.evals + excluded.evals,
        outcome_billionths = total.outcome_billionths + excluded.outcome_billionths,
        drift_evals = total.drift_evals + excluded.drift_evals,
        drift_billionths = total.drift_billionths + excluded.drift_billionths;

    UPDATE apc_log.run_changes SET summed_seq = (seen ->> shard::text)::bigint
    WHERE run_id = of_run AND seen ? shard::text;
END $$;

-- Adds at most so many runs that have not changed since `at_rest_since`, those that rest longest first; how many. One
-- process at a time does it, others return 0.
CREATE FUNCTION apc_log.sum_runs(at_rest_since timestamptz, at_most integer) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    resting record;
    done integer := 0;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtext('apc_log.sum_runs')) THEN
        RETURN 0;
    END IF;
    FOR resting IN
        SELECT run_id FROM apc_log.unsummed_runs WHERE judged_at <= at_rest_since ORDER BY judged_at, run_id LIMIT at_most
    LOOP
        PERFORM apc_log.sum_run(resting.run_id);
        done := done + 1;
    END LOOP;
    RETURN done;
END $$;
