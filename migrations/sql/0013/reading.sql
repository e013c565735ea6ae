-- What pages of the log are read by: every filter of `apc packet trace` has an index in the order of the log, so that a
-- page stops where it is full, also for a type or a phase that is rare.
CREATE INDEX agent_packets_type ON apc_log.agent_packets (packet_type, shard, seq);
DROP INDEX apc_log.agent_packets_type_time;
CREATE INDEX agent_packets_phase ON apc_log.agent_packets (run_phase, shard, seq);
-- `apc packet replay`: the hops of a session in the order of the log.
CREATE INDEX packet_events_session ON apc_log.packet_events (session_id, shard, seq);
