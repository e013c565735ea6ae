-- Who refers to a packet or an artifact. Without a pending list: the closure of a retraction looks here once a packet.
CREATE INDEX agent_packets_refers_to ON apc_log.agent_packets USING gin (refers_to) WITH (fastupdate = off)
    WHERE refers_to IS NOT NULL;

-- Packets that rest on a retracted one: the hop that says so moves no machine. `because` is what they rest on; the
-- retraction is null where a packet came after it and was stale from the beginning.
CREATE VIEW apc_log.packet_stale AS
SELECT session_id, packet_id, (metadata #>> '{stale,because}')::uuid AS because_packet_id,
       (metadata #>> '{stale,retraction}')::uuid AS retraction_packet_id, occurred_at[1] AS marked_at, shard, seq
FROM apc_log.packet_events
WHERE recipient = '' AND attempt = 0 AND to_state = '' AND events = ARRAY['stale'];

DO $$
BEGIN
    ALTER VIEW apc_log.packet_stale OWNER TO apc_owner;
    ALTER FUNCTION apc_log.reference_of(text) OWNER TO apc_owner;
    ALTER FUNCTION apc_log.references_in(text, bytea) OWNER TO apc_owner;
    ALTER FUNCTION apc_log.definitions_in(text, bytea) OWNER TO apc_owner;
    ALTER FUNCTION apc_log.is_verifying(jsonb) OWNER TO apc_owner;
EXCEPTION
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'the views keep the owner % (%)', current_user, SQLERRM;
END $$;

DO $$
BEGIN
    GRANT SELECT ON apc_log.packet_stale TO apc_reader, apc_writer;
EXCEPTION
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'roles were not granted their rights (%): connect as %', SQLERRM, current_user;
END $$;
