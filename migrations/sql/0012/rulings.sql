-- The hops that ended a wait: few, and what the verdicts on held TRANSFERs and EVALs are read from. Without it a lineage
-- query looks at the hops of the whole log.
CREATE INDEX packet_events_rulings ON apc_log.packet_events (session_id, packet_id)
    WHERE recipient = '' AND from_state = 'SCHEMA_VALIDATED';
