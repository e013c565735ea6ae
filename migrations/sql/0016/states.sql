-- The state of a packet over all its recipients, as before, in a form that the planner takes into the statement: called
-- one by one the function was most of the time of a page.
CREATE FUNCTION apc_log.packet_states(in_session text, packet uuid, recipients text[]) RETURNS TABLE (state text)
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN shared.to_state IS NULL THEN 'DRAFT'
                WHEN shared.to_state <> 'ROUTED' THEN shared.to_state
                ELSE coalesce(own.least_advanced, own.at_rest, 'ROUTED') END
    FROM (
        SELECT (SELECT hop.to_state FROM apc_log.packet_events AS hop
                WHERE hop.session_id = in_session AND hop.packet_id = packet AND hop.recipient = ''
                  AND hop.to_state <> ''
                ORDER BY hop.seq DESC LIMIT 1) AS to_state
    ) AS shared
    CROSS JOIN LATERAL (
        SELECT (array_agg(latest.state ORDER BY ranked.rank) FILTER (WHERE ranked.rank IS NOT NULL))[1]
                   AS least_advanced,
               min(latest.state) AS at_rest
        FROM unnest(recipients) AS one(recipient)
        CROSS JOIN LATERAL (
            SELECT coalesce((SELECT hop.to_state FROM apc_log.packet_events AS hop
                             WHERE hop.session_id = in_session AND hop.packet_id = packet
                               AND hop.recipient = one.recipient AND hop.to_state <> ''
                             ORDER BY hop.seq DESC LIMIT 1), 'ROUTED') AS state
        ) AS latest
        CROSS JOIN LATERAL (SELECT apc_log.lifecycle_rank(latest.state) AS rank) AS ranked
    ) AS own
$$;

CREATE OR REPLACE FUNCTION apc_log.packet_state_of(in_session text, packet uuid, recipients text[]) RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT state FROM apc_log.packet_states(in_session, packet, recipients)
$$;

DO $$
BEGIN
    ALTER FUNCTION apc_log.packet_states(text, uuid, text[]) OWNER TO apc_owner;
EXCEPTION
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'the function keeps its owner (%): connect as %', SQLERRM, current_user;
END $$;
