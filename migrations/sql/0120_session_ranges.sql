-- Where in its shard the entries of a session stand: statements that name a session read this range of the log alone.
SELECT apc_guard.maintain('the range of the log that the entries of a session stand in');

-- Null until it is known. first_seq 0: entries of other shards name the session as well, so that it has no one range.
ALTER TABLE apc_log.sessions ADD COLUMN first_seq bigint, ADD COLUMN last_seq bigint;

-- Up to this entry of the shard the ranges take every entry in. The writer moves it with next_seq. Where it is behind (a
-- writer of an older release, an entry of the guard, the log of an older release) the follower takes the rest in, in
-- pieces, and until then readers know no range: they read as before.
ALTER TABLE apc_log.shards ADD COLUMN bounded_seq bigint NOT NULL DEFAULT 0;

-- The first entry that names a session, 0 where another shard has one, null where there is none. What names a session
-- before it begins is a refused packet or a conflict.
CREATE FUNCTION apc_log.first_named(named text, in_shard integer) RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (
        SELECT CASE WHEN min(shard) <> in_shard OR max(shard) <> in_shard THEN 0 ELSE min(seq) END
        FROM (
            (SELECT shard, seq FROM apc_log.agent_packets WHERE session_id = named ORDER BY shard, seq LIMIT 1)
            UNION ALL
            (SELECT shard, seq FROM apc_log.agent_packets WHERE session_id = named ORDER BY shard DESC, seq DESC LIMIT 1)
            UNION ALL
            (SELECT shard, seq FROM apc_log.packet_events WHERE session_id = named ORDER BY shard, seq LIMIT 1)
            UNION ALL
            (SELECT shard, seq FROM apc_log.packet_events WHERE session_id = named ORDER BY shard DESC, seq DESC LIMIT 1)
            UNION ALL
            (SELECT shard, seq FROM apc_log.packet_conflicts WHERE session_id = named ORDER BY shard, seq LIMIT 1)
            UNION ALL
            (SELECT shard, seq FROM apc_log.packet_conflicts WHERE session_id = named ORDER BY shard DESC, seq DESC LIMIT 1)
        ) AS outermost
    );
END $$;

-- Takes at most so many entries of a shard into the ranges, under the lock on its head; returns whether there are more.
CREATE FUNCTION apc_log.bound_sessions(in_shard integer, most bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    head record;
    until bigint;
BEGIN
    SELECT bounded_seq AS done, next_seq - 1 AS last INTO head FROM apc_log.shards WHERE shard = in_shard FOR UPDATE;
    IF NOT FOUND OR head.done >= head.last THEN
        RETURN false;
    END IF;
    until := least(head.done + most, head.last);
    UPDATE apc_log.sessions AS session
    SET first_seq = CASE WHEN session.shard <> in_shard THEN 0
                         WHEN session.first_seq IS NULL
                         THEN least(apc_log.first_named(session.session_id, in_shard), named.first)
                         ELSE least(session.first_seq, named.first) END,
        last_seq = greatest(session.last_seq, named.last)
    FROM (
        SELECT session_id, min(seq) AS first, max(seq) AS last FROM (
            SELECT session_id, seq FROM apc_log.agent_packets
            WHERE shard = in_shard AND seq > head.done AND seq <= until
            UNION ALL
            SELECT session_id, seq FROM apc_log.packet_events
            WHERE shard = in_shard AND seq > head.done AND seq <= until
            UNION ALL
            SELECT session_id, seq FROM apc_log.packet_lineage
            WHERE shard = in_shard AND seq > head.done AND seq <= until
            UNION ALL
            SELECT session_id, seq FROM apc_log.coordination_events
            WHERE shard = in_shard AND seq > head.done AND seq <= until
            UNION ALL
            SELECT session_id, seq FROM apc_log.packet_conflicts
            WHERE shard = in_shard AND seq > head.done AND seq <= until
        ) AS entry GROUP BY session_id
    ) AS named
    WHERE session.session_id = named.session_id AND (
        session.first_seq IS NULL OR session.last_seq IS NULL OR named.first < session.first_seq
        OR named.last > session.last_seq OR session.shard <> in_shard AND session.first_seq <> 0);
    UPDATE apc_log.shards SET bounded_seq = until WHERE shard = in_shard;
    RETURN until < head.last;
END $$;

-- How a packet's deliveries stand (0104_states.sql), read from a range of the log. A form that the planner takes into
-- the statement.
CREATE FUNCTION apc_log.packet_states(
    in_session text, packet uuid, recipients text[], in_shard integer, first_seq bigint, last_seq bigint
) RETURNS TABLE (state text)
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN shared.to_state IS NULL THEN 'DRAFT'
                WHEN shared.to_state <> 'ROUTED' THEN shared.to_state
                ELSE coalesce(own.least_advanced, own.at_rest, 'ROUTED') END
    FROM (
        SELECT (SELECT hop.to_state FROM apc_log.packet_events AS hop
                WHERE hop.session_id = in_session AND hop.packet_id = packet AND hop.recipient = ''
                  AND hop.to_state <> '' AND hop.shard = in_shard AND hop.seq BETWEEN first_seq AND last_seq
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
                               AND hop.shard = in_shard AND hop.seq BETWEEN first_seq AND last_seq
                             ORDER BY hop.seq DESC LIMIT 1), 'ROUTED') AS state
        ) AS latest
        CROSS JOIN LATERAL (SELECT apc_log.lifecycle_rank(latest.state) AS rank) AS ranked
    ) AS own
$$;
