-- What search and the list of runs are read from: filled from the log after commit, by one follower
-- (apc_persister.follower), never in the writer's transaction. Everything here can be deleted and is made again.
SELECT apc_guard.maintain('tables that search and the list of runs are read from');

-- Up to which entry of a shard a projection follows the log. It moves in the transaction that fills the projection.
CREATE TABLE apc_log.followed (
    projection text NOT NULL,
    shard integer NOT NULL,
    seq bigint NOT NULL,
    PRIMARY KEY (projection, shard)
) WITH (fillfactor = 50);

-- One row a packet. `words` holds the words of its content (strip: no positions) and, as NAME=VALUE, what it is found by
-- exactly: `end` (an id from its end), `run`, `agent`, `schema`, `code`. Words hold no '='. is_read is false where
-- the content could not be read (it is encrypted): the row then has names alone.
CREATE TABLE apc_log.packet_search (
    shard integer NOT NULL,
    seq bigint NOT NULL,
    at timestamptz NOT NULL,
    is_read boolean NOT NULL,
    key_id uuid,
    words tsvector NOT NULL,
    PRIMARY KEY (shard, seq)
);
CREATE INDEX packet_search_words ON apc_log.packet_search USING gin (words);
CREATE INDEX packet_search_newest ON apc_log.packet_search (at, shard, seq);
-- Those whose content is not searched are counted.
CREATE INDEX packet_search_unread ON apc_log.packet_search (at) WHERE NOT is_read;
-- An erasure removes the rows of a key.
CREATE INDEX packet_search_key ON apc_log.packet_search (key_id) WHERE key_id IS NOT NULL;

-- One row a run. Its title is not stored: it is a line of the packet at (input_shard, input_seq), read when it is shown.
CREATE TABLE apc_log.run_cards (
    run_id text PRIMARY KEY,
    opened_at timestamptz NOT NULL,
    ended_at timestamptz,
    updated_at timestamptz NOT NULL,
    team text,
    tags text[] NOT NULL DEFAULT '{}',
    contract text,
    outcome text NOT NULL CHECK (outcome IN ('running', 'closed', 'halted')),
    states text[] NOT NULL,
    sessions integer NOT NULL,
    running integer NOT NULL,
    open_deliveries bigint NOT NULL,
    packets double precision,
    tokens double precision,
    cost double precision,
    agents text[] NOT NULL,
    input_shard integer,
    input_seq bigint,
    words tsvector NOT NULL DEFAULT ''
) WITH (fillfactor = 70);
CREATE INDEX run_cards_words ON apc_log.run_cards USING gin (words);
CREATE INDEX run_cards_opened ON apc_log.run_cards (opened_at, run_id);

SELECT apc_guard.exempt('apc_log.followed');
SELECT apc_guard.exempt('apc_log.packet_search');
SELECT apc_guard.exempt('apc_log.run_cards');

-- The key that a stored body is encrypted with; null where it is none (apc_log.body_encryption).
CREATE FUNCTION apc_log.key_in(body bytea) RETURNS uuid
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE RETURN CASE
    WHEN substring(body FROM 1 FOR 5) = '\x0061706331'::bytea AND length(body) >= 21
    THEN encode(substring(body FROM 6 FOR 16), 'hex')::uuid END;

-- A packet's bytes as jsonb, which has no U+0000; null where they are no JSON (they are encrypted). An escape is one only
-- behind an even number of backslashes: `\\u0000` is a text about it.
CREATE FUNCTION apc_log.document_in(body bytea) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
BEGIN
    IF position('\x5c7530303030'::bytea IN body) > 0 THEN
        RETURN regexp_replace(convert_from(body, 'UTF8'), '(?<!\\)((?:\\\\)*)\\u0000', '\1 ', 'g')::jsonb;
    END IF;
    RETURN convert_from(body, 'UTF8')::jsonb;
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
    RETURN NULL;
END $$;

-- Every text and number in a document, without the names of its fields. Nobody searches for 1e300, which has 301 digits
-- here: 20,000 such numbers would be more than a tsvector holds. SETOF (always one row) and not STRICT: so it becomes part of
-- the query that reads from it; and jsonb_path_query() not in FROM, which would store what it returns. Both cost much.
CREATE FUNCTION apc_log.said_in(document jsonb) RETURNS SETOF text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT string_agg(value #>> '{}', ' ')
    FROM (SELECT jsonb_path_query(document, 'strict $.** ? (@.type() == "string" || @.type() == "number")')) AS found(value)
    WHERE jsonb_typeof(value) = 'string' OR length(value::text) <= 24
$$;

-- The packet as jsonb. One that a reader cannot take must not end a query over others.
CREATE OR REPLACE VIEW apc_log.packets AS
SELECT shard, seq, session_id, packet_id, packet_type, verdict, judged_at,
       CASE WHEN position('\x0061706331'::bytea IN substring(body_stored FROM 1 FOR 5)) = 0
            THEN apc_log.document_in(body_stored) END AS packet
FROM apc_log.agent_packets;

-- A text whose punctuation the parser would join to hosts, files, numbers with a sign and tags is blank; the rest divides
-- words anyway. Not by translate(): that compares every character with each of them, and took longer than the parser.
CREATE FUNCTION apc_log.divided(said text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN
    replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(
        coalesce(said, ''), '-', ' '), '.', ' '), '/', ' '), ':', ' '), '@', ' '), '_', ' '), '<', ' '), '>', ' '), '&', ' '),
        '+', ' '), '~', ' ');

-- The words of a text. Punctuation divides words, whatever they look like: `refund/4711` and `a_b@c.de` are two and four.
-- The parser takes most of the time, so a short text of ASCII is divided at every punctuation instead: the words are
-- the same but for `1e5x`, which the parser divides. 2,046 bytes are the longest word that a tsvector holds.
CREATE FUNCTION apc_log.words_of(said text) RETURNS tsvector
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN CASE
    WHEN octet_length(said) <= 2046 AND said !~ '[^\t\n\r -~]|[0-9][Ee][0-9]+[A-Za-z]'
    THEN array_to_tsvector(array_remove(string_to_array(lower(
        replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(
        replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(
            apc_log.divided(said), '!', ' '), '"', ' '), '#', ' '), '$', ' '), '%', ' '), '''', ' '), '(', ' '), ')', ' '),
            '*', ' '), ',', ' '), ';', ' '), '=', ' '), '?', ' '), '[', ' '), '\', ' '), ']', ' '), '^', ' '), '`', ' '),
            '{', ' '), '|', ' '), '}', ' '), E'\t', ' '), E'\n', ' '), E'\r', ' ')), ' '), ''))
    ELSE strip(to_tsvector('simple', apc_log.divided(said))) END;

-- An id from its end: who searches for the end of an id searches for a beginning of this.
CREATE FUNCTION apc_log.end_of(id text) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE RETURN 'end=' || reverse(lower(left(id, 256)));

-- The words of an id that somebody chose; an id of 36 characters is a UUID, which is found by its end. Not STRICT: so it
-- becomes part of the query that calls it.
CREATE FUNCTION apc_log.name_in(id text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN CASE WHEN length(id) = 36 THEN '' ELSE id END;

-- The rows of packet_search as they follow from the log. Nobody searches for HEARTBEATs, nor for what ACKs say.
CREATE VIEW apc_log.packet_words AS
SELECT packet.shard, packet.seq, packet.judged_at AS at, content.document IS NOT NULL AS is_read,
       CASE WHEN content.document IS NULL THEN apc_log.key_in(packet.body_stored) END AS key_id,
       apc_log.words_of(said.text) || array_to_tsvector(array_remove(ARRAY[
           apc_log.end_of(packet.packet_id::text), apc_log.end_of(packet.session_id), apc_log.end_of(packet.run_id),
           'run=' || packet.run_id, 'agent=' || packet.sender_agent_id,
           'schema=' || left(named.schema, 256), 'code=' || named.code]
           || ARRAY(SELECT 'agent=' || one FROM unnest(packet.recipients) AS one), NULL)) AS words
FROM apc_log.agent_packets AS packet
-- OFFSET 0: read once, not for each column that uses it.
CROSS JOIN LATERAL (SELECT apc_log.document_in(packet.body_stored) AS document OFFSET 0) AS content
LEFT JOIN LATERAL (
    SELECT hop.metadata -> 'refusal' ->> 'code' AS code FROM apc_log.packet_events AS hop
    WHERE packet.verdict = 'held' AND hop.shard = packet.shard AND hop.session_id = packet.session_id
      AND hop.packet_id = packet.packet_id AND hop.recipient = '' AND hop.from_state = 'SCHEMA_VALIDATED'
    ORDER BY hop.seq LIMIT 1
) AS ruling ON true
CROSS JOIN LATERAL (
    SELECT coalesce(packet.refusal_code, ruling.code) AS code,
           coalesce(content.document #>> '{payload,schema}', content.document #>> '{payload,request,schema}',
                    content.document #>> '{payload,answer,result,schema}',
                    content.document #>> '{payload,result,schema}') AS schema OFFSET 0
) AS named
CROSS JOIN LATERAL (
    SELECT concat_ws(' ', packet.packet_type, packet.sender_agent_id, array_to_string(packet.recipients, ' '),
        apc_log.name_in(packet.run_id), apc_log.name_in(packet.session_id), named.schema, named.code,
        CASE WHEN packet.packet_type <> 'ACK' THEN concat_ws(' ',
            (SELECT * FROM apc_log.said_in(content.document -> 'payload')),
            (SELECT * FROM apc_log.said_in(content.document -> 'metadata'))) END) AS text OFFSET 0
) AS said
WHERE packet.packet_type <> 'HEARTBEAT';

-- A packet's names alone, as it has them where its content cannot be read.
CREATE VIEW apc_log.packet_names AS
SELECT shard, seq, judged_at AS at, false AS is_read, apc_log.key_in(body_stored) AS key_id,
       array_to_tsvector(array_remove(ARRAY[
           apc_log.end_of(packet_id::text), apc_log.end_of(session_id), apc_log.end_of(run_id), 'run=' || run_id,
           'agent=' || sender_agent_id, 'code=' || refusal_code], NULL)) AS words
FROM apc_log.agent_packets WHERE packet_type <> 'HEARTBEAT';

-- Takes the packets among these entries into packet_search, and what rulings say about packets that were held. Of an
-- erased key nothing is taken. One that has more words than a tsvector holds is found by its names, and the others by theirs.
CREATE FUNCTION apc_log.index_packets(of_shard integer, first_seq bigint, last_seq bigint) RETURNS void
LANGUAGE plpgsql SET client_min_messages = error SET plan_cache_mode = force_custom_plan
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_memoize = off AS $$
DECLARE
    erased constant uuid[] := ARRAY(
        SELECT DISTINCT jsonb_array_elements_text(detail -> 'key_ids')::uuid FROM apc_log.log_events
        WHERE kind = 'erasure');
    ruled record;
BEGIN
    BEGIN
        INSERT INTO apc_log.packet_search (shard, seq, at, is_read, key_id, words)
        SELECT shard, seq, at, is_read, key_id, words FROM apc_log.packet_words
        WHERE shard = of_shard AND seq BETWEEN first_seq AND last_seq AND (key_id = ANY (erased)) IS NOT TRUE
        ON CONFLICT (shard, seq) DO NOTHING;
    EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
        IF first_seq < last_seq THEN
            PERFORM apc_log.index_packets(of_shard, first_seq, (first_seq + last_seq) / 2);
            PERFORM apc_log.index_packets(of_shard, (first_seq + last_seq) / 2 + 1, last_seq);
            RETURN;
        END IF;
        INSERT INTO apc_log.packet_search (shard, seq, at, is_read, key_id, words)
        SELECT shard, seq, at, is_read, key_id, words FROM apc_log.packet_names
        WHERE shard = of_shard AND seq = first_seq AND (key_id = ANY (erased)) IS NOT TRUE
        ON CONFLICT (shard, seq) DO NOTHING;
    END;

    -- Few, and one by one: a plan for all of them could begin at the other end.
    FOR ruled IN
        SELECT DISTINCT named.shard, named.seq FROM apc_log.packet_events AS hop
        JOIN apc_log.packet_ids AS named USING (shard, session_id, packet_id)
        WHERE hop.shard = of_shard AND hop.seq BETWEEN first_seq AND last_seq
          AND hop.recipient = '' AND hop.from_state = 'SCHEMA_VALIDATED'
    LOOP
        BEGIN
            UPDATE apc_log.packet_search SET words = (
                SELECT words FROM apc_log.packet_words WHERE shard = ruled.shard AND seq = ruled.seq)
            WHERE shard = ruled.shard AND seq = ruled.seq;
        EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
            NULL; -- it keeps its names
        END;
    END LOOP;
END $$;

-- What the START of a session says of its run: the team, and each scalar of its metadata as KEY=VALUE.
CREATE FUNCTION apc_log.tags_in(metadata jsonb) RETURNS text[]
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE RETURN ARRAY(
    SELECT left(key, 64) || '=' || left(value #>> '{}', 200)
    FROM jsonb_each(CASE jsonb_typeof(metadata) WHEN 'object' THEN metadata ELSE '{}' END)
    WHERE key <> 'team' AND jsonb_typeof(value) IN ('string', 'number', 'boolean')
    ORDER BY key LIMIT 32);

-- The figures of a run follow from its sessions as they are now.
CREATE VIEW apc_log.run_figures AS
SELECT session.run_id, coalesce(min((document ->> 'opened_at')::timestamptz), min(updated_at)) AS opened_at,
       CASE WHEN bool_and(is_terminal) THEN coalesce(max(ended.at), max(updated_at)) END AS ended_at,
       max(updated_at) AS updated_at, max(document #>> '{work,contract}') AS contract,
       CASE WHEN NOT bool_and(is_terminal) THEN 'running' WHEN bool_or(state = 'HALTED') THEN 'halted'
            ELSE 'closed' END AS outcome,
       array_agg(DISTINCT state) AS states, count(*)::integer AS sessions,
       (count(*) FILTER (WHERE NOT is_terminal))::integer AS running, sum(open_deliveries)::bigint AS open_deliveries,
       sum((document #>> '{spent,packets}')::double precision) AS packets,
       sum((document #>> '{spent,tokens}')::double precision) AS tokens,
       sum((document #>> '{spent,cost}')::double precision) AS cost
FROM apc_log.sessions AS session
LEFT JOIN LATERAL (
    SELECT max(moved.recorded_at) AS at FROM apc_log.coordination_events AS moved
    WHERE session.is_terminal AND moved.session_id = session.session_id AND moved.to_state = session.state
) AS ended ON true
GROUP BY session.run_id;

-- Writes the figures of a run; its names and words when it is new, has got its input, or has other sessions.
CREATE FUNCTION apc_log.write_card(of_run text) RETURNS void
LANGUAGE plpgsql SET client_min_messages = error AS $$
DECLARE
    before constant apc_log.run_cards := (SELECT card FROM apc_log.run_cards AS card WHERE run_id = of_run);
    figures constant apc_log.run_figures := (SELECT now FROM apc_log.run_figures AS now WHERE run_id = of_run);
    opening apc_log.sessions;
    start jsonb;
    input record;
    named record;
BEGIN
    IF figures.run_id IS NULL THEN
        RETURN;
    END IF;
    INSERT INTO apc_log.run_cards AS card (run_id, opened_at, ended_at, updated_at, contract, outcome, states, sessions,
                                           running, open_deliveries, packets, tokens, cost, agents)
    VALUES (of_run, figures.opened_at, figures.ended_at, figures.updated_at, figures.contract, figures.outcome,
            figures.states, figures.sessions, figures.running, figures.open_deliveries, figures.packets, figures.tokens,
            figures.cost, '{}')
    ON CONFLICT (run_id) DO UPDATE SET
        opened_at = excluded.opened_at, ended_at = excluded.ended_at, updated_at = excluded.updated_at,
        outcome = excluded.outcome, states = excluded.states, sessions = excluded.sessions, running = excluded.running,
        open_deliveries = excluded.open_deliveries, packets = excluded.packets, tokens = excluded.tokens,
        cost = excluded.cost;
    IF before.input_seq IS NOT NULL AND before.sessions = figures.sessions THEN
        RETURN;
    END IF;

    SELECT * INTO opening FROM apc_log.sessions WHERE run_id = of_run
    ORDER BY (document ->> 'opened_at')::timestamptz, session_id LIMIT 1;
    SELECT apc_log.document_in(packet.body_stored) INTO start
    FROM apc_log.packet_ids AS ids JOIN apc_log.agent_packets AS packet USING (shard, seq)
    WHERE ids.session_id = opening.session_id AND ids.packet_id = (opening.document ->> 'start_packet_id')::uuid;
    SELECT shard, seq, apc_log.document_in(body_stored) AS document INTO input FROM apc_log.agent_packets
    WHERE session_id = opening.session_id AND packet_type <> 'SIGNAL' AND verdict <> 'refused'
    ORDER BY session_id, shard, seq LIMIT 1;
    -- A viewer of the console sees the team's name: it is a name, not a text.
    SELECT CASE WHEN start #>> '{metadata,team}' ~ '^[[:alnum:]][[:alnum:]._:/ -]{0,99}$'
                THEN start #>> '{metadata,team}' END AS team,
           coalesce(apc_log.tags_in(start -> 'metadata'), '{}') AS tags,
           coalesce(figures.contract, (
               SELECT convert_from(document, 'UTF8')::jsonb ->> 'name' FROM apc_log.contracts
               WHERE contract_hash = decode(opening.document ->> 'contract_hash', 'hex'))) AS contract,
           ARRAY(SELECT DISTINCT member #>> '{}' FROM apc_log.sessions AS one
                 CROSS JOIN LATERAL (
                     SELECT jsonb_path_query(one.document, '$.members[*]')
                     UNION ALL SELECT jsonb_path_query(one.document, '$.swarms.*[*]')) AS listed(member)
                 WHERE one.run_id = of_run ORDER BY 1 LIMIT 1000) AS agents,
           ARRAY(SELECT apc_log.end_of(session_id) FROM apc_log.sessions WHERE run_id = of_run
                 ORDER BY session_id LIMIT 1000) AS ends
    INTO named;
    UPDATE apc_log.run_cards SET
        team = named.team, tags = named.tags, contract = named.contract, agents = named.agents,
        input_shard = input.shard, input_seq = input.seq,
        words = apc_log.words_of(concat_ws(' ', apc_log.name_in(of_run), named.team, named.contract,
                    array_to_string(named.tags, ' '), array_to_string(named.agents, ' '),
                    (SELECT * FROM apc_log.said_in(input.document -> 'payload'))))
                || array_to_tsvector(array_remove(ARRAY[apc_log.end_of(of_run), 'run=' || of_run, 'team=' || named.team,
                    'contract=' || named.contract] || named.ends || ARRAY(SELECT 'tag=' || one FROM unnest(named.tags) AS one)
                    || ARRAY(SELECT 'agent=' || one FROM unnest(named.agents) AS one), NULL))
    WHERE run_id = of_run;
-- A document of another release keeps its run without a card; the others go on.
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
    RETURN;
END $$;

-- Writes the cards of the runs that these entries are about.
CREATE FUNCTION apc_log.write_cards(of_shard integer, first_seq bigint, last_seq bigint) RETURNS void
LANGUAGE sql AS $$
    SELECT apc_log.write_card(run_id) FROM (
        SELECT DISTINCT run_id FROM (
            SELECT session_id FROM apc_log.agent_packets
            WHERE shard = of_shard AND seq BETWEEN first_seq AND last_seq
            UNION SELECT session_id FROM apc_log.packet_events
            WHERE shard = of_shard AND seq BETWEEN first_seq AND last_seq
            UNION SELECT session_id FROM apc_log.coordination_events
            WHERE shard = of_shard AND seq BETWEEN first_seq AND last_seq
        ) AS entry JOIN apc_log.sessions USING (session_id)
    ) AS touched ORDER BY run_id
$$;

DO $$
BEGIN
    GRANT SELECT ON apc_log.followed, apc_log.packet_search, apc_log.run_cards, apc_log.packet_words,
        apc_log.packet_names, apc_log.run_figures TO apc_reader, apc_writer;
    GRANT INSERT, UPDATE ON apc_log.followed, apc_log.packet_search, apc_log.run_cards TO apc_writer;
EXCEPTION
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'roles were not granted their rights (%): connect as %', SQLERRM, current_user;
END $$;
