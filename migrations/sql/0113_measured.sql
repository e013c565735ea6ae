-- Which EVALs measured a protocol, or one that was made of it: what lineage figures compare. A TRANSFER always has a mode.
SELECT apc_guard.maintain('indexes of the packets that name a protocol and are no TRANSFER');

CREATE INDEX packet_lineage_measured ON apc_log.packet_lineage (protocol_id) WHERE transfer_mode = '';
CREATE INDEX packet_lineage_measured_parents ON apc_log.packet_lineage USING gin (parent_protocol_ids)
    WHERE transfer_mode = '';
