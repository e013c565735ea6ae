-- What a lineage summary of the whole log reads instead of every ruling: in which tasks and runs each protocol was used.
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
SELECT apc_guard.exempt('apc_log.protocol_tasks');
SELECT apc_guard.exempt('apc_log.protocol_runs');

INSERT INTO apc_log.protocol_tasks
SELECT DISTINCT protocol_id, run_id, task_id, coalesce(refusal_code, ''), shard FROM apc_log.transfer_rulings;
INSERT INTO apc_log.protocol_runs
SELECT protocol_id, run_id, coalesce(refusal_code, ''), shard, max(judged_at)
FROM apc_log.transfer_rulings GROUP BY 1, 2, 3, 4;
DROP INDEX apc_log.transfer_rulings_uses;
-- Pages of one protocol's TRANSFERs, the newest first.
CREATE INDEX transfer_rulings_protocol ON apc_log.transfer_rulings (protocol_id, judged_at, shard, seq);

DO $$
BEGIN
    GRANT SELECT ON apc_log.protocol_tasks, apc_log.protocol_runs TO apc_reader, apc_writer;
    GRANT INSERT, UPDATE ON apc_log.protocol_tasks, apc_log.protocol_runs TO apc_writer;
EXCEPTION
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'roles were not granted their rights (%): connect as %', SQLERRM, current_user;
END $$;

-- As in 0105_analytics, and the two tables above.
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
END $$;
