-- What the effectiveness of protocols is computed from (docs/specification/contract.md section 6). Each view has a branch for packets that were
-- judged on arrival and one for those that were held first: their verdict is the hop that ended the waiting, and `seq`
-- and `judged_at` are those of the verdict.

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

-- The metrics of every admitted EVAL whose body can be read.
CREATE VIEW apc_log.eval_metrics AS
SELECT packet.shard, packet.seq, packet.judged_at, packet.session_id, packet.packet_id, packet.run_id, packet.task_id,
       (content.packet #>> '{payload,metric_set,outcome}')::double precision AS outcome,
       (content.packet #>> '{payload,metric_set,drift_risk}')::double precision AS drift_risk
FROM apc_log.agent_packets AS packet
JOIN apc_log.packets AS content USING (shard, seq)
WHERE packet.packet_type = 'EVAL' AND packet.verdict = 'accepted' AND content.packet IS NOT NULL
UNION ALL
SELECT hop.shard, hop.seq, hop.occurred_at[1], packet.session_id, packet.packet_id, packet.run_id, packet.task_id,
       (content.packet #>> '{payload,metric_set,outcome}')::double precision,
       (content.packet #>> '{payload,metric_set,drift_risk}')::double precision
FROM apc_log.packet_events AS hop
JOIN apc_log.packet_ids AS named USING (session_id, packet_id)
JOIN apc_log.agent_packets AS packet ON packet.shard = named.shard AND packet.seq = named.seq
JOIN apc_log.packets AS content ON content.shard = named.shard AND content.seq = named.seq
WHERE hop.recipient = '' AND hop.from_state = 'SCHEMA_VALIDATED' AND hop.to_state = 'ROUTED'
  AND packet.packet_type = 'EVAL' AND content.packet IS NOT NULL;

-- The DECISIONs that blocked a protocol or recorded its recovery; `decay` is the record (apc_contracts.protocol.decay).
CREATE VIEW apc_log.decay_decisions AS
SELECT shard, seq, judged_at, session_id, packet_id, parent_packet_id, run_id, task_id, facts -> 'decay' AS decay
FROM apc_log.agent_packets
WHERE packet_type = 'DECISION' AND sender_agent_id = 'orchestrator' AND facts ? 'decay';

DO $$
BEGIN
    ALTER VIEW apc_log.transfer_verdicts OWNER TO apc_owner;
    ALTER VIEW apc_log.eval_metrics OWNER TO apc_owner;
    ALTER VIEW apc_log.decay_decisions OWNER TO apc_owner;
EXCEPTION
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'the views keep the owner % (%)', current_user, SQLERRM;
END $$;

DO $$
BEGIN
    GRANT SELECT ON apc_log.transfer_verdicts, apc_log.eval_metrics, apc_log.decay_decisions
        TO apc_reader, apc_writer;
EXCEPTION
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'roles were not granted their rights (%): connect as %', SQLERRM, current_user;
END $$;
