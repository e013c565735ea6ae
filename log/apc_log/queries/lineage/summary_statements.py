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
# (docs/specification/contract.md section 6). Of the whole log from the sums of runs at rest; what has changed since,
# and one run, from the counts (docs/decisions/0019-sums-of-runs-at-rest.md).
COMPARED = """
WITH live AS (SELECT run_id FROM apc_log.unsummed_runs WHERE $3::text IS NULL UNION ALL SELECT $3 WHERE $3 IS NOT NULL),
used AS (
    SELECT DISTINCT protocol_id, run_id, task_id FROM apc_log.protocol_tasks
    WHERE protocol_id = ANY ($1::text[]) AND refusal_code = ANY ($2::text[])
      AND run_id = ANY (ARRAY(SELECT run_id FROM live))
), own AS (
    SELECT run_id, task_id, sum(evals) AS evals, sum(outcome_billionths) AS outcome, sum(drift_evals) AS drift_evals,
           sum(drift_billionths) AS drift
    FROM apc_log.task_tallies WHERE run_id = ANY (ARRAY(SELECT run_id FROM live)) GROUP BY run_id, task_id
), parts AS (
    SELECT protocol_id, task_id, 1 AS tasks, evals, outcome, drift_evals, drift
    FROM used JOIN own USING (run_id, task_id)
    UNION ALL
    SELECT protocol_id, task_id, tasks, evals, outcome_billionths, drift_evals, drift_billionths
    FROM apc_log.protocol_sums
    WHERE $3 IS NULL AND protocol_id = ANY ($1) AND refusal_codes && $2
    UNION ALL
    SELECT protocol_id, task_id, -1, -evals, -outcome_billionths, -drift_evals, -drift_billionths
    FROM apc_log.summed_uses
    WHERE $3 IS NULL AND run_id = ANY (ARRAY(SELECT run_id FROM live)) AND protocol_id = ANY ($1)
      AND refusal_codes && $2
), by_task AS (
    SELECT protocol_id, task_id, sum(tasks) AS tasks, sum(evals)::double precision AS evals,
           sum(outcome)::double precision AS outcome, sum(drift_evals)::double precision AS drift_evals,
           sum(drift)::double precision AS drift
    FROM parts GROUP BY protocol_id, task_id HAVING sum(tasks) > 0
), usual AS (
    SELECT task_id, sum(outcome_billionths::double precision) / nullif(sum(evals::double precision), 0) AS outcome,
           sum(drift_billionths::double precision) / nullif(sum(drift_evals::double precision), 0) AS drift
    FROM apc_log.task_tallies
    WHERE $3 IS NULL OR task_id = ANY (ARRAY(SELECT task_id FROM used))
    GROUP BY task_id
)
SELECT protocol_id, sum(by_task.tasks)::bigint AS tasks, sum(by_task.evals)::bigint AS evals,
       sum(by_task.outcome)::bigint AS outcome_billionths, sum(by_task.drift_evals)::bigint AS drift_evals,
       sum(by_task.drift)::bigint AS drift_billionths,
       coalesce(sum(by_task.outcome - by_task.evals * usual.outcome) / nullif(sum(by_task.evals), 0), 0) / 1e9
           AS outcome_lift,
       coalesce(sum(by_task.drift - by_task.drift_evals * usual.drift) / nullif(sum(by_task.drift_evals), 0), 0) / 1e9
           AS drift_delta
FROM by_task LEFT JOIN usual USING (task_id)
GROUP BY protocol_id
"""
SEEN = """
SELECT protocol_id, count(DISTINCT run_id) AS runs_in_log,
       count(DISTINCT run_id) FILTER (WHERE $3::text IS NULL OR run_id = $3) AS runs,
       max(last_judged_at) FILTER (WHERE $3::text IS NULL OR run_id = $3) AS last_seen_at
FROM apc_log.protocol_runs
WHERE protocol_id = ANY ($1::text[]) AND refusal_code = ANY ($2::text[])
GROUP BY protocol_id
"""
# Sums over tens of thousands of tasks: in memory, by hash, compiled by nobody. The planner expects too few rows to hash
# them, sorts or spills them, and would compile what runs for a tenth of a second.
IN_MEMORY = """
SET LOCAL enable_mergejoin = off; SET LOCAL work_mem = '32MB'; SET LOCAL jit = off;
SET LOCAL plan_cache_mode = force_custom_plan
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
# As view transfer_eval_correlation says it, each task read once for both kinds.
CORRELATION = """
WITH summed AS (
    SELECT sum(outcome_billionths::double precision) / nullif(sum(evals::double precision), 0) / 1e9 AS outcome,
           sum(drift_billionths::double precision) / nullif(sum(drift_evals::double precision), 0) / 1e9 AS drift,
           sum(transfers::double precision) AS transfers, sum(accepted::double precision) AS accepted,
           sum(cross_transfers::double precision) AS crossing, sum(cross_accepted::double precision) AS cross_accepted
    FROM apc_log.task_tallies WHERE $1::text IS NULL OR run_id = $1
    GROUP BY run_id, task_id
), figures AS (
    SELECT count(*) FILTER (WHERE transfers > crossing) AS tasks, sum(transfers - crossing) AS transfers,
           sum(accepted - cross_accepted) AS accepted,
           avg(outcome) FILTER (WHERE transfers > crossing) AS outcome,
           avg(drift) FILTER (WHERE transfers > crossing) AS drift,
           corr(outcome, accepted - cross_accepted) FILTER (WHERE transfers > crossing) AS outcome_correlation,
           corr(drift, accepted - cross_accepted) FILTER (WHERE transfers > crossing) AS drift_correlation,
           count(*) FILTER (WHERE crossing > 0) AS cross_tasks, sum(crossing) AS crossing,
           sum(cross_accepted) AS cross_accepted,
           avg(outcome) FILTER (WHERE crossing > 0) AS cross_outcome,
           avg(drift) FILTER (WHERE crossing > 0) AS cross_drift,
           corr(outcome, cross_accepted) FILTER (WHERE crossing > 0) AS cross_outcome_correlation,
           corr(drift, cross_accepted) FILTER (WHERE crossing > 0) AS cross_drift_correlation
    FROM summed
)
SELECT kind.cross_use_case, kind.tasks, kind.transfers::bigint AS transfers, kind.accepted::bigint AS accepted,
       kind.average_outcome, kind.average_drift_risk, kind.outcome_correlation, kind.drift_correlation
FROM figures CROSS JOIN LATERAL (VALUES
    (false, tasks, transfers, accepted, outcome, drift, outcome_correlation, drift_correlation),
    (true, cross_tasks, crossing, cross_accepted, cross_outcome, cross_drift, cross_outcome_correlation,
     cross_drift_correlation)
) AS kind(cross_use_case, tasks, transfers, accepted, average_outcome, average_drift_risk, outcome_correlation,
          drift_correlation)
WHERE kind.tasks > 0 ORDER BY kind.cross_use_case
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
