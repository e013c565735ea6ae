"""The SQL statements of the lineage summary."""

# What the writer keeps (migrations/sql/0105_analytics.sql): over the whole log counts by protocol, of a run its
# verdicts. Of counted TRANSFERs alone (apc_contracts.protocol.effectiveness.is_counted).
RANKED_OF_ALL = """
SELECT protocol_id, sum(transfers)::bigint AS transfers,
       coalesce(sum(transfers) FILTER (WHERE refusal_code = ''), 0)::bigint AS accepted,
       coalesce(sum(transfers) FILTER (WHERE cross_use_case), 0)::bigint AS cross_use_case
FROM apc_log.protocol_tallies
WHERE (refusal_code = '' OR refusal_code = ANY ($1::text[])) AND $2::text IS NULL
  AND ($3::text IS NULL OR protocol_id = $3)
GROUP BY protocol_id
HAVING $4::bigint IS NULL OR (-sum(transfers), protocol_id) > (-$4, $5::text)
ORDER BY sum(transfers) DESC, protocol_id
LIMIT $6
"""
RANKED = """
SELECT protocol_id, count(*) AS transfers, count(*) FILTER (WHERE is_accepted) AS accepted,
       count(*) FILTER (WHERE cross_use_case) AS cross_use_case
FROM apc_log.transfer_rulings
WHERE (is_accepted OR refusal_code = ANY ($1::text[])) AND run_id = $2 AND ($3::text IS NULL OR protocol_id = $3)
GROUP BY protocol_id
HAVING $4::bigint IS NULL OR (-count(*), protocol_id) > (-$4, $5::text)
ORDER BY count(*) DESC, protocol_id
LIMIT $6
"""
# A protocol beside what its tasks show anyway: the baseline of a task is over all runs, those without a transfer are
# what the others are compared with; each task weighs as much as the protocol's own EVALs in it
# (docs/specification/contract.md section 6).
COMPARED = """
WITH used AS (
    SELECT protocol_id, run_id, task_id, max(judged_at) AS judged_at FROM apc_log.transfer_rulings
    WHERE protocol_id = ANY ($1::text[]) AND (is_accepted OR refusal_code = ANY ($2::text[]))
      AND ($3::text IS NULL OR run_id = $3)
    GROUP BY protocol_id, run_id, task_id
), scores AS MATERIALIZED (
    SELECT run_id, task_id, sum(evals::double precision) AS evals,
           sum(outcome_billionths::double precision) / 1e9 AS outcome,
           sum(drift_evals::double precision) AS drift_evals, sum(drift_billionths::double precision) / 1e9 AS drift
    FROM apc_log.task_tallies
    WHERE $3::text IS NULL OR task_id IN (SELECT task_id FROM apc_log.transfer_rulings WHERE run_id = $3)
    GROUP BY run_id, task_id
), usual AS (
    SELECT task_id, sum(outcome) / nullif(sum(evals), 0) AS outcome, sum(drift) / nullif(sum(drift_evals), 0) AS drift
    FROM scores GROUP BY task_id
), own AS MATERIALIZED (
    SELECT run_id, task_id, scores.evals, scores.outcome, scores.drift_evals, scores.drift,
           scores.outcome - scores.evals * usual.outcome AS lift,
           scores.drift - scores.drift_evals * usual.drift AS delta
    FROM scores JOIN usual USING (task_id)
), by_run AS (
    SELECT used.protocol_id, used.run_id, max(judged_at) AS judged_at, count(*) AS tasks, sum(evals) AS evals,
           sum(outcome) AS outcome, sum(drift_evals) AS drift_evals, sum(drift) AS drift, sum(lift) AS lift,
           sum(delta) AS delta
    FROM used LEFT JOIN own USING (run_id, task_id)
    GROUP BY used.protocol_id, used.run_id
)
SELECT protocol_id, count(*) AS runs, max(judged_at) AS last_seen_at, sum(tasks)::bigint AS tasks,
       coalesce(sum(evals), 0)::bigint AS evals,
       coalesce(round(sum(outcome) * 1e9), 0)::bigint AS outcome_billionths,
       coalesce(sum(drift_evals), 0)::bigint AS drift_evals,
       coalesce(round(sum(drift) * 1e9), 0)::bigint AS drift_billionths,
       coalesce(sum(lift) / nullif(sum(evals), 0), 0) AS outcome_lift,
       coalesce(sum(delta) / nullif(sum(drift_evals), 0), 0) AS drift_delta
FROM by_run GROUP BY protocol_id
"""
# The planner expects too few rows to hash them, and sorts tens of thousands.
HASH_JOINS = "SET LOCAL enable_mergejoin = off"
RUNS_IN_LOG = """
SELECT protocol_id, count(DISTINCT run_id) AS runs FROM apc_log.transfer_rulings
WHERE protocol_id = ANY ($1::text[]) AND (is_accepted OR refusal_code = ANY ($2::text[]))
GROUP BY protocol_id
"""
QUALITY_OF_ALL = """
SELECT transfer_mode, sum(transfers)::bigint AS transfers,
       coalesce(sum(transfers) FILTER (WHERE refusal_code = ''), 0)::bigint AS accepted,
       coalesce(sum(transfers) FILTER (WHERE cross_use_case), 0)::bigint AS cross_use_case,
       (sum(sender_billionths) / nullif(sum(sender_scores), 0) / 1e9)::double precision AS average_sender_score,
       (sum(receiver_billionths) / nullif(sum(receiver_scores), 0) / 1e9)::double precision AS average_receiver_score
FROM apc_log.protocol_tallies
WHERE $1::text IS NULL AND ($2::text IS NULL OR protocol_id = $2)
GROUP BY transfer_mode ORDER BY sum(transfers) DESC, transfer_mode
"""
QUALITY = """
SELECT transfer_mode, count(*) AS transfers, count(*) FILTER (WHERE is_accepted) AS accepted,
       count(*) FILTER (WHERE cross_use_case) AS cross_use_case,
       avg(sender_score) AS average_sender_score, avg(receiver_score) AS average_receiver_score
FROM apc_log.transfer_rulings
WHERE run_id = $1 AND ($2::text IS NULL OR protocol_id = $2)
GROUP BY transfer_mode ORDER BY count(*) DESC, transfer_mode
"""
CORRELATION = """
SELECT cross_use_case, count(*) AS tasks, sum(transfers)::bigint AS transfers, sum(accepted)::bigint AS accepted,
       avg(average_outcome) AS average_outcome, avg(average_drift_risk) AS average_drift_risk,
       corr(average_outcome, accepted) AS outcome_correlation, corr(average_drift_risk, accepted) AS drift_correlation
FROM apc_log.transfer_eval_correlation
WHERE $1::text IS NULL OR run_id = $1
GROUP BY cross_use_case ORDER BY cross_use_case
"""
PROPAGATION = """
SELECT shard, seq, judged_at, run_id, task_id, session_id, packet_id, protocol_id, parent_protocol_ids, from_swarm,
       to_swarm, transfer_mode, cross_use_case, sender_score, receiver_score, refusal_code
FROM apc_log.transfer_rulings
WHERE ($1::text IS NULL OR run_id = $1) AND ($2::text IS NULL OR protocol_id = $2)
  AND ($3::timestamptz IS NULL OR (judged_at, shard, seq) < ($3, $4::integer, $5::bigint))
ORDER BY judged_at DESC, shard DESC, seq DESC LIMIT $6
"""
REFUSALS_OF_ALL = """
SELECT refusal_code, sum(transfers)::bigint AS transfers FROM apc_log.protocol_tallies
WHERE refusal_code <> '' AND $1::text IS NULL AND ($2::text IS NULL OR protocol_id = $2)
GROUP BY refusal_code ORDER BY sum(transfers) DESC, refusal_code
"""
REFUSALS = """
SELECT refusal_code, count(*) AS transfers FROM apc_log.transfer_rulings
WHERE NOT is_accepted AND run_id = $1 AND ($2::text IS NULL OR protocol_id = $2)
GROUP BY refusal_code ORDER BY count(*) DESC, refusal_code
"""
ARBITRATIONS = """
SELECT latest.*, content.packet #>> '{payload,arbitration_id}' AS arbitration_id,
       content.packet #>> '{payload,winner_candidate_id}' AS winner_candidate_id
FROM (
    SELECT shard, seq, judged_at, run_id, session_id, packet_id FROM apc_log.agent_packets
    WHERE packet_type = 'ARBITRATION' AND verdict = 'accepted' AND ($1::text IS NULL OR run_id = $1)
    ORDER BY judged_at DESC, shard, seq DESC LIMIT $2
) AS latest
JOIN apc_log.packets AS content USING (shard, seq)
ORDER BY latest.judged_at DESC, latest.shard, latest.seq DESC
"""
DECAY = """
SELECT shard, seq, judged_at, run_id, session_id, packet_id, decay ->> 'kind' AS kind, decay ->> 'scope' AS scope,
       decay ->> 'protocol_id' AS protocol_id, (decay ->> 'blocked_until')::timestamptz AS blocked_until
FROM apc_log.decay_decisions
WHERE ($1::text IS NULL OR run_id = $1) AND ($2::text IS NULL OR decay ->> 'protocol_id' = $2)
ORDER BY judged_at DESC, shard, seq DESC LIMIT $3
"""
