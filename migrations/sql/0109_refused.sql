-- What was refused, in the order of the log: few beside the packets among which it stands.
CREATE INDEX IF NOT EXISTS agent_packets_refused ON apc_log.agent_packets (shard, seq) WHERE verdict = 'refused';
-- The conflicts of a session, for its trace and replay.
CREATE INDEX IF NOT EXISTS packet_conflicts_session ON apc_log.packet_conflicts (session_id, shard, seq)
    WHERE session_id IS NOT NULL;
