-- The deliveries that ended as dead letters, in the order of the log: few beside the hops among which they stand.
CREATE INDEX packet_events_dead ON apc_log.packet_events (shard, seq) WHERE to_state = 'DEAD_LETTERED';
