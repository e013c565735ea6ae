-- Lineage analytics (docs/specification/log.md section 5): what was transferred where, by which verdict, and how those tasks did. All of it
-- is derived: views over the entries. Bodies that cannot be read (erased, encrypted) count nowhere.

-- Every TRANSFER with a final verdict and its lineage.
CREATE VIEW apc_log.judged_transfers AS
SELECT verdict.shard, verdict.seq, verdict.judged_at, verdict.session_id, verdict.packet_id, verdict.run_id,
       verdict.task_id, verdict.protocol_id, verdict.parent_protocol_ids, verdict.refusal_code,
       verdict.refusal_code IS NULL AS is_accepted, lineage.cross_use_case, lineage.transfer_mode, lineage.from_swarm,
       lineage.to_swarm, lineage.sender_score, lineage.receiver_score
FROM apc_log.transfer_verdicts AS verdict
JOIN apc_log.packet_lineage AS lineage USING (session_id, packet_id);

-- The EVALs of each task of a run. Metrics are clamped and summed as whole billionths, as apc_contracts.protocol.effectiveness
-- does: a sum of these does not depend on its order.
CREATE VIEW apc_log.task_scores AS
SELECT run_id, task_id, count(outcome) AS evals,
       coalesce(sum(round(least(greatest(outcome, 0), 1) * 1000000000)::bigint), 0)::bigint AS outcome_billionths,
       count(drift_risk) AS drift_evals,
       coalesce(sum(round(least(greatest(drift_risk, 0), 1) * 1000000000)::bigint), 0)::bigint AS drift_billionths
FROM apc_log.eval_metrics
GROUP BY run_id, task_id;

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

-- docs/specification/contract.md section 6, one row a protocol over the whole log, those before a recovery too.
CREATE VIEW apc_log.protocol_effectiveness AS
WITH counted AS (
    SELECT transfer.* FROM apc_log.judged_transfers AS transfer CROSS JOIN apc_log.effectiveness_rules AS rules
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
FROM apc_log.judged_transfers
GROUP BY run_id, protocol_id, transfer_mode, cross_use_case;

-- What was transferred in a task beside how the task did; one row a task of a run and kind of TRANSFER.
CREATE VIEW apc_log.transfer_eval_correlation AS
SELECT transfer.run_id, transfer.task_id, transfer.cross_use_case, transfer.transfers, transfer.accepted,
       coalesce(score.evals, 0) AS evals, coalesce(score.drift_evals, 0) AS drift_evals,
       score.outcome_billionths::double precision / nullif(score.evals, 0) / 1e9 AS average_outcome,
       score.drift_billionths::double precision / nullif(score.drift_evals, 0) / 1e9 AS average_drift_risk
FROM (
    SELECT run_id, task_id, cross_use_case, count(*) AS transfers, count(*) FILTER (WHERE is_accepted) AS accepted
    FROM apc_log.judged_transfers GROUP BY run_id, task_id, cross_use_case
) AS transfer
LEFT JOIN apc_log.task_scores AS score USING (run_id, task_id);

-- Children of a packet by what caused them: the index by parent is there, this is the other edge of the tree.
CREATE INDEX agent_packets_cause ON apc_log.agent_packets (cause_packet_id) WHERE cause_packet_id IS NOT NULL;

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['judged_transfers', 'task_scores', 'effectiveness_rules', 'protocol_effectiveness',
                                'transfer_quality', 'transfer_eval_correlation'] LOOP
        EXECUTE format('ALTER VIEW apc_log.%I OWNER TO apc_owner', name);
        EXECUTE format('GRANT SELECT ON apc_log.%I TO apc_reader, apc_writer', name);
    END LOOP;
EXCEPTION
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'the views keep their owner and rights (%): connect as %', SQLERRM, current_user;
END $$;
