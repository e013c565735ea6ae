-- Lineage (docs/specification/contract.md section 6, docs/specification/log.md section 5): what was transferred where, by which
-- verdict, and how those tasks did. All of it is derived from the entries. Bodies that cannot be read (erased, encrypted)
-- count nowhere.

-- Views over the entries. Each has a branch for packets that were judged on arrival and one for those that were held first:
-- their verdict is the hop that ended the waiting, and `seq` and `judged_at` are those of the verdict.

-- The verdicts in the order of the log: few beside the hops and packets among which they stand.
CREATE INDEX agent_packets_transfers ON apc_log.agent_packets (shard, seq)
    WHERE packet_type = 'TRANSFER' AND verdict <> 'held';
CREATE INDEX packet_events_ruled ON apc_log.packet_events (shard, seq)
    WHERE recipient = '' AND from_state = 'SCHEMA_VALIDATED';
CREATE INDEX agent_packets_decay ON apc_log.agent_packets (judged_at, shard, seq)
    WHERE packet_type = 'DECISION' AND sender_agent_id = 'orchestrator' AND facts ? 'decay';
-- The hops that ended a wait: few, and what the verdicts on held TRANSFERs and EVALs are read from. Without it a lineage
-- query looks at the hops of the whole log.
CREATE INDEX packet_events_rulings ON apc_log.packet_events (session_id, packet_id)
    WHERE recipient = '' AND from_state = 'SCHEMA_VALIDATED';

-- The final verdict on every TRANSFER with a lineage; refusal_code is null when it was accepted.
CREATE VIEW apc_log.transfer_verdicts AS
SELECT packet.shard, packet.seq, packet.judged_at, packet.session_id, packet.packet_id, packet.run_id, packet.task_id,
       lineage.protocol_id, lineage.parent_protocol_ids, packet.refusal_code
FROM apc_log.agent_packets AS packet
JOIN apc_log.packet_lineage AS lineage USING (session_id, packet_id)
WHERE packet.packet_type = 'TRANSFER' AND packet.verdict <> 'held'
UNION ALL
SELECT hop.shard, hop.seq, hop.occurred_at[1], packet.session_id, packet.packet_id, packet.run_id, packet.task_id,
       lineage.protocol_id, lineage.parent_protocol_ids, hop.metadata #>> '{refusal,code}'
FROM apc_log.packet_events AS hop
JOIN apc_log.packet_ids AS named USING (session_id, packet_id)
JOIN apc_log.agent_packets AS packet ON packet.shard = named.shard AND packet.seq = named.seq
JOIN apc_log.packet_lineage AS lineage ON lineage.session_id = hop.session_id AND lineage.packet_id = hop.packet_id
WHERE hop.recipient = '' AND hop.from_state = 'SCHEMA_VALIDATED' AND hop.to_state <> 'RETRACTED'
  AND packet.packet_type = 'TRANSFER';

-- Every TRANSFER with a final verdict and its lineage.
CREATE VIEW apc_log.judged_transfers AS
SELECT verdict.shard, verdict.seq, verdict.judged_at, verdict.session_id, verdict.packet_id, verdict.run_id,
       verdict.task_id, verdict.protocol_id, verdict.parent_protocol_ids, verdict.refusal_code,
       verdict.refusal_code IS NULL AS is_accepted, lineage.cross_use_case, lineage.transfer_mode, lineage.from_swarm,
       lineage.to_swarm, lineage.sender_score, lineage.receiver_score
FROM apc_log.transfer_verdicts AS verdict
JOIN apc_log.packet_lineage AS lineage USING (session_id, packet_id);

-- The metrics of an EVAL's bytes, outcome and drift_risk; null where they cannot be read (they are encrypted): a row
-- must not fail for that.
CREATE FUNCTION apc_log.metrics_in(body bytea) RETURNS double precision[]
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
    metrics jsonb;
BEGIN
    metrics := convert_from(body, 'UTF8')::jsonb #> '{payload,metric_set}';
    RETURN ARRAY[(metrics ->> 'outcome')::double precision, (metrics ->> 'drift_risk')::double precision];
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
    RETURN NULL;
END $$;

-- The metrics of every admitted EVAL whose body can be read.
CREATE VIEW apc_log.eval_metrics AS
SELECT packet.shard, packet.seq, packet.judged_at, packet.session_id, packet.packet_id, packet.run_id, packet.task_id,
       read.metrics[1] AS outcome, read.metrics[2] AS drift_risk
FROM apc_log.agent_packets AS packet CROSS JOIN LATERAL apc_log.metrics_in(packet.body_stored) AS read(metrics)
WHERE packet.packet_type = 'EVAL' AND packet.verdict = 'accepted' AND read.metrics IS NOT NULL
UNION ALL
SELECT hop.shard, hop.seq, hop.occurred_at[1], packet.session_id, packet.packet_id, packet.run_id, packet.task_id,
       read.metrics[1], read.metrics[2]
FROM apc_log.packet_events AS hop
JOIN apc_log.packet_ids AS named USING (session_id, packet_id)
JOIN apc_log.agent_packets AS packet ON packet.shard = named.shard AND packet.seq = named.seq
CROSS JOIN LATERAL apc_log.metrics_in(packet.body_stored) AS read(metrics)
WHERE hop.recipient = '' AND hop.from_state = 'SCHEMA_VALIDATED' AND hop.to_state = 'ROUTED'
  AND packet.packet_type = 'EVAL' AND read.metrics IS NOT NULL;

-- The DECISIONs that blocked a protocol or recorded its recovery; `decay` is the record (apc_contracts.protocol.effectiveness).
CREATE VIEW apc_log.decay_decisions AS
SELECT shard, seq, judged_at, session_id, packet_id, parent_packet_id, run_id, task_id, facts -> 'decay' AS decay
FROM apc_log.agent_packets
WHERE packet_type = 'DECISION' AND sender_agent_id = 'orchestrator' AND facts ? 'decay';

-- The weights and the counted refusals of the contract that a gate brought last.
CREATE VIEW apc_log.effectiveness_rules AS
SELECT contract_hash, (rules ->> 'acceptance_weight')::double precision AS acceptance_weight,
       (rules ->> 'outcome_weight')::double precision AS outcome_weight,
       (rules ->> 'drift_weight')::double precision AS drift_weight,
       ARRAY(SELECT jsonb_array_elements_text(rules -> 'counted_refusals')) AS counted_refusals
FROM (
    SELECT contract_hash, convert_from(document, 'UTF8')::jsonb -> 'effectiveness' AS rules
    FROM apc_log.contracts ORDER BY recorded_at DESC, contract_hash LIMIT 1
) AS newest;

-- What lineage summaries are read from, so that none of them reads packets: counts that the writer keeps up in the
-- transaction that logs what they follow from. They can be rebuilt from the log at any time (`tally` over all of a
-- shard), and a test does. One row a shard: writers of several shards never wait for each other's rows.

-- The EVALs of each task of a run, and its TRANSFERs by the final verdict, whatever they were refused for.
CREATE TABLE apc_log.task_tallies (
    shard integer NOT NULL,
    run_id text NOT NULL,
    task_id text NOT NULL,
    evals bigint NOT NULL DEFAULT 0,
    outcome_billionths bigint NOT NULL DEFAULT 0,
    drift_evals bigint NOT NULL DEFAULT 0,
    drift_billionths bigint NOT NULL DEFAULT 0,
    transfers bigint NOT NULL DEFAULT 0,
    accepted bigint NOT NULL DEFAULT 0,
    cross_transfers bigint NOT NULL DEFAULT 0,
    cross_accepted bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (run_id, task_id, shard)
) WITH (fillfactor = 70);
CREATE INDEX task_tallies_task ON apc_log.task_tallies (task_id);

-- Every TRANSFER with its final verdict, as view judged_transfers says it; (shard, seq) is where that verdict stands.
CREATE TABLE apc_log.transfer_rulings (
    shard integer NOT NULL,
    seq bigint NOT NULL,
    judged_at timestamptz NOT NULL,
    session_id text NOT NULL,
    packet_id uuid NOT NULL,
    run_id text NOT NULL,
    task_id text NOT NULL,
    protocol_id text NOT NULL,
    parent_protocol_ids text[] NOT NULL,
    refusal_code text,
    is_accepted boolean NOT NULL,
    cross_use_case boolean NOT NULL,
    transfer_mode text NOT NULL,
    from_swarm text,
    to_swarm text,
    sender_score double precision,
    receiver_score double precision,
    PRIMARY KEY (shard, seq)
);
CREATE INDEX transfer_rulings_run ON apc_log.transfer_rulings (run_id, shard, seq);
-- Pages of TRANSFERs, the newest first.
CREATE INDEX transfer_rulings_newest ON apc_log.transfer_rulings (judged_at, shard, seq);
-- In which tasks a protocol was used, read from the index alone: a summary of the whole log reads some tens of thousands of
-- rulings.
CREATE INDEX transfer_rulings_uses ON apc_log.transfer_rulings (protocol_id, run_id, task_id)
    INCLUDE (judged_at, is_accepted, refusal_code);

-- TRANSFERs over all runs and tasks by protocol, kind and verdict ('' = accepted): a few rows a protocol. Scores are sums
-- of whole billionths.
CREATE TABLE apc_log.protocol_tallies (
    shard integer NOT NULL,
    protocol_id text NOT NULL,
    transfer_mode text NOT NULL,
    cross_use_case boolean NOT NULL,
    refusal_code text NOT NULL,
    transfers bigint NOT NULL,
    sender_scores bigint NOT NULL,
    sender_billionths bigint NOT NULL,
    receiver_scores bigint NOT NULL,
    receiver_billionths bigint NOT NULL,
    PRIMARY KEY (protocol_id, transfer_mode, cross_use_case, refusal_code, shard)
) WITH (fillfactor = 50);

-- A score or a metric as whole billionths: sums of these do not depend on their order.
CREATE FUNCTION apc_log.billionths(fraction double precision) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN round(least(greatest(fraction, 0), 1) * 1000000000)::bigint;

-- Counts what the entries of a shard from `first_seq` to `last_seq` say: the writer calls it once for each transaction.
-- Always from the entries to what they name, by index: the planner does not know how few they are.
CREATE FUNCTION apc_log.tally(of_shard integer, first_seq bigint, last_seq bigint) RETURNS void
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

-- What others read stands on the counts.
-- The EVALs of each task of a run. Metrics are clamped and summed as whole billionths, as apc_contracts.protocol.effectiveness
-- does: a sum of these does not depend on its order.
CREATE VIEW apc_log.task_scores AS
SELECT run_id, task_id, sum(evals)::bigint AS evals, sum(outcome_billionths)::bigint AS outcome_billionths,
       sum(drift_evals)::bigint AS drift_evals, sum(drift_billionths)::bigint AS drift_billionths
FROM apc_log.task_tallies
GROUP BY run_id, task_id;

-- docs/specification/contract.md section 6, one row a protocol over the whole log, those before a recovery too.
CREATE VIEW apc_log.protocol_effectiveness AS
WITH counted AS (
    SELECT transfer.* FROM apc_log.transfer_rulings AS transfer CROSS JOIN apc_log.effectiveness_rules AS rules
    WHERE transfer.is_accepted OR transfer.refusal_code = ANY (rules.counted_refusals)
), tally AS (
    SELECT protocol_id, count(*) AS transfers, count(*) FILTER (WHERE is_accepted) AS accepted,
           count(DISTINCT run_id) AS runs, count(*) FILTER (WHERE cross_use_case) AS cross_use_case_transfers
    FROM counted GROUP BY protocol_id
), scored AS (
    SELECT task.protocol_id, count(*) AS tasks, coalesce(sum(score.evals), 0)::bigint AS evals,
           sum(score.outcome_billionths) / nullif(sum(score.evals), 0) / 1e9 AS outcome,
           sum(score.drift_billionths) / nullif(sum(score.drift_evals), 0) / 1e9 AS drift
    FROM (SELECT DISTINCT protocol_id, run_id, task_id FROM counted) AS task
    LEFT JOIN apc_log.task_scores AS score USING (run_id, task_id)
    GROUP BY task.protocol_id
), figures AS (
    SELECT tally.*, scored.tasks, scored.evals, accepted::double precision / transfers AS acceptance_rate,
           coalesce(scored.outcome, 0)::double precision AS average_outcome,
           coalesce(scored.drift, 0)::double precision AS average_drift_risk
    FROM tally JOIN scored USING (protocol_id)
)
SELECT figures.*, rules.acceptance_weight * acceptance_rate + rules.outcome_weight * average_outcome
       + rules.drift_weight * (1 - average_drift_risk) AS effectiveness
FROM figures CROSS JOIN apc_log.effectiveness_rules AS rules;

-- How TRANSFERs fared, by run, protocol and mode.
CREATE VIEW apc_log.transfer_quality AS
SELECT run_id, protocol_id, transfer_mode, cross_use_case, count(*) AS transfers,
       count(*) FILTER (WHERE is_accepted) AS accepted,
       count(*) FILTER (WHERE is_accepted)::double precision / count(*) AS acceptance_rate,
       avg(sender_score) AS average_sender_score, avg(receiver_score) AS average_receiver_score
FROM apc_log.transfer_rulings
GROUP BY run_id, protocol_id, transfer_mode, cross_use_case;

-- What was transferred in a task beside how the task did; one row a task of a run and kind of TRANSFER.
CREATE VIEW apc_log.transfer_eval_correlation AS
SELECT task.run_id, task.task_id, kind.cross_use_case, kind.transfers, kind.accepted, task.evals, task.drift_evals,
       task.outcome_billionths::double precision / nullif(task.evals, 0) / 1e9 AS average_outcome,
       task.drift_billionths::double precision / nullif(task.drift_evals, 0) / 1e9 AS average_drift_risk
FROM (
    SELECT run_id, task_id, sum(evals)::bigint AS evals, sum(outcome_billionths)::bigint AS outcome_billionths,
           sum(drift_evals)::bigint AS drift_evals, sum(drift_billionths)::bigint AS drift_billionths,
           sum(transfers)::bigint AS transfers, sum(accepted)::bigint AS accepted,
           sum(cross_transfers)::bigint AS cross_transfers, sum(cross_accepted)::bigint AS cross_accepted
    FROM apc_log.task_tallies GROUP BY run_id, task_id
) AS task
CROSS JOIN LATERAL (VALUES
    (true, task.cross_transfers, task.cross_accepted),
    (false, task.transfers - task.cross_transfers, task.accepted - task.cross_accepted)
) AS kind(cross_use_case, transfers, accepted)
WHERE kind.transfers > 0;
