-- What goes wrong, and what people answered: derived from the log by the follower of 0114, so that a count over millions of
-- packets reads few rows. No text of a packet is kept here: the entry at (shard, seq) has it.
SELECT apc_guard.maintain('tables of troubles and answers, and the role that settles effects and acknowledges issues');

CREATE TABLE apc_log.troubles (
    shard integer NOT NULL,
    seq bigint NOT NULL,
    kind text NOT NULL CHECK (kind IN ('refusal', 'failure', 'dead_letter', 'verification')),
    at timestamptz NOT NULL,
    code text NOT NULL,
    rule text NOT NULL, -- of a refusal; of a failure the exception
    field text NOT NULL,
    agent_id text NOT NULL,
    session_id text,
    run_id text,
    packet_id uuid,
    packet_type text,
    PRIMARY KEY (shard, seq)
);
CREATE INDEX troubles_at ON apc_log.troubles (at);
SELECT apc_guard.exempt('apc_log.troubles');

-- How many troubles of the finest groups came in which minute: a list of issues reads these instead of each trouble.
-- `issue` is the hash of the five columns, which are too long for a key together.
CREATE TABLE apc_log.trouble_minutes (
    minute timestamptz NOT NULL,
    issue bytea NOT NULL,
    kind text NOT NULL,
    code text NOT NULL,
    rule text NOT NULL,
    field text NOT NULL,
    agent_id text NOT NULL,
    number bigint NOT NULL,
    first_at timestamptz NOT NULL,
    last_at timestamptz NOT NULL,
    PRIMARY KEY (minute, issue)
) WITH (fillfactor = 70);
SELECT apc_guard.exempt('apc_log.trouble_minutes');

-- The end of a question to people: an ANSWER of one of them, or of the gate when the time was over.
CREATE TABLE apc_log.answers (
    shard integer NOT NULL,
    seq bigint NOT NULL,
    at timestamptz NOT NULL,
    session_id text NOT NULL,
    question_id uuid NOT NULL,
    answer_id uuid NOT NULL,
    answered_by text NOT NULL,
    outcome text NOT NULL,
    PRIMARY KEY (shard, seq)
);
CREATE INDEX answers_at ON apc_log.answers (at);
CREATE INDEX answers_session ON apc_log.answers (session_id);
SELECT apc_guard.exempt('apc_log.answers');

-- The exception that an ERROR begins with: Python's `KeyError: 'x'`, `module.Name: …`; '' where it begins otherwise.
CREATE FUNCTION apc_log.exception_in(message text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN coalesce(substring(message FROM '^([A-Za-z_][A-Za-z0-9_.]{0,99})(?::|$)'), '');

-- The rows of troubles as they follow from the log. HEARTBEATs that expired are left out: after an outage of the gate they
-- would bury the rest. Entries of all tables have their own seq, so each row has its place. What is about a packet is in
-- the packet's shard: the joins say so, or each query would be planned over the segments of all shards.
CREATE VIEW apc_log.trouble_rows AS
SELECT shard, seq, 'refusal' AS kind, judged_at AS at, coalesce(refusal_code, '') AS code,
       coalesce(refusal ->> 'rule', '') AS rule, coalesce(refusal ->> 'path', '') AS field, sender_agent_id AS agent_id,
       session_id, run_id, packet_id, packet_type
FROM apc_log.agent_packets
WHERE verdict = 'refused' AND (packet_type <> 'HEARTBEAT' OR refusal_code <> 'EXPIRED')
UNION ALL
SELECT hop.shard, hop.seq, 'refusal', hop.recorded_at, coalesce(hop.metadata #>> '{refusal,code}', ''),
       coalesce(hop.metadata #>> '{refusal,rule}', ''), coalesce(hop.metadata #>> '{refusal,path}', ''),
       packet.sender_agent_id, packet.session_id, packet.run_id, packet.packet_id, packet.packet_type
FROM apc_log.packet_events AS hop
JOIN apc_log.packet_ids AS named USING (shard, session_id, packet_id)
JOIN apc_log.agent_packets AS packet ON packet.shard = named.shard AND packet.seq = named.seq AND packet.verdict = 'held'
WHERE hop.recipient = '' AND hop.from_state = 'SCHEMA_VALIDATED' AND hop.metadata ? 'refusal'
UNION ALL
SELECT shard, seq, 'refusal', recorded_at, coalesce(code, upper(kind)), '', '', coalesce(user_id, ''), session_id, NULL,
       packet_id, NULL
FROM apc_log.packet_conflicts
UNION ALL
SELECT packet.shard, packet.seq, 'failure', packet.judged_at, coalesce(said.error ->> 'error_code', ''),
       apc_log.exception_in(said.error ->> 'message'), '', packet.sender_agent_id, packet.session_id, packet.run_id,
       coalesce(packet.cause_packet_id, packet.packet_id), packet.packet_type
FROM apc_log.agent_packets AS packet
CROSS JOIN LATERAL (SELECT apc_log.document_in(packet.body_stored) -> 'payload') AS said(error)
WHERE packet.packet_type = 'ERROR' AND packet.verdict <> 'refused'
  AND packet.sender_agent_id <> 'orchestrator' -- who tells of dead letters, which are counted themselves
UNION ALL
SELECT hop.shard, hop.seq, CASE WHEN hop.to_state = 'DEAD_LETTERED' THEN 'dead_letter' ELSE 'verification' END,
       hop.recorded_at, CASE WHEN hop.to_state = 'DEAD_LETTERED'
           THEN upper(coalesce(substring(hop.metadata ->> 'error' FROM '^[a-z_]{1,40}'), '')) ELSE 'VERIFICATION_FAILED' END,
       '', '', CASE WHEN hop.to_state = 'DEAD_LETTERED' THEN hop.recipient ELSE packet.sender_agent_id END,
       hop.session_id, packet.run_id, hop.packet_id, packet.packet_type
FROM apc_log.packet_events AS hop
JOIN apc_log.packet_ids AS named USING (shard, session_id, packet_id)
JOIN apc_log.agent_packets AS packet ON packet.shard = named.shard AND packet.seq = named.seq
WHERE hop.to_state = 'DEAD_LETTERED'
   OR 'verification_fail' = ANY (hop.events) AND hop.metadata ->> 'error' IS DISTINCT FROM 'erased';

-- The rows of answers. A request of an agent is answered by an agent, and ends in no approval.
CREATE VIEW apc_log.answer_rows AS
SELECT packet.shard, packet.seq, packet.judged_at AS at, packet.session_id, packet.parent_packet_id AS question_id,
       packet.packet_id AS answer_id, packet.sender_agent_id AS answered_by, said.answer ->> 'outcome' AS outcome
FROM apc_log.agent_packets AS packet
CROSS JOIN LATERAL (SELECT apc_log.document_in(packet.body_stored) #> '{payload,answer}') AS said(answer)
JOIN apc_log.packet_ids AS named ON named.shard = packet.shard AND named.session_id = packet.session_id
    AND named.packet_id = packet.parent_packet_id
JOIN apc_log.agent_packets AS asked ON asked.shard = named.shard AND asked.seq = named.seq
WHERE packet.packet_type = 'SIGNAL' AND packet.verdict = 'accepted' AND packet.parent_packet_id IS NOT NULL
  AND position('"answer"'::bytea IN packet.body_stored) > 0
  AND said.answer ->> 'outcome' IN ('approved', 'denied', 'timed_out')
  AND apc_log.document_in(asked.body_stored) #> '{payload,question}' IS NOT NULL;

-- Takes these entries into the tables; what is there already stays, and counts once.
CREATE FUNCTION apc_log.note_troubles(of_shard integer, first_seq bigint, last_seq bigint) RETURNS void
LANGUAGE sql AS $$
    WITH added AS (
        INSERT INTO apc_log.troubles (shard, seq, kind, at, code, rule, field, agent_id, session_id, run_id, packet_id, packet_type)
        SELECT shard, seq, kind, at, code, rule, field, agent_id, session_id, run_id, packet_id, packet_type
        FROM apc_log.trouble_rows WHERE shard = of_shard AND seq BETWEEN first_seq AND last_seq
        ON CONFLICT DO NOTHING RETURNING kind, code, rule, field, agent_id, at
    )
    INSERT INTO apc_log.trouble_minutes AS known
        (minute, issue, kind, code, rule, field, agent_id, number, first_at, last_at)
    SELECT date_trunc('minute', at, 'UTC'),
           sha256(convert_to(jsonb_build_array(kind, code, rule, field, agent_id)::text, 'UTF8')),
           kind, code, rule, field, agent_id, count(*), min(at), max(at)
    FROM added GROUP BY 1, 2, 3, 4, 5, 6, 7
    ON CONFLICT (minute, issue) DO UPDATE SET number = known.number + excluded.number,
        first_at = least(known.first_at, excluded.first_at), last_at = greatest(known.last_at, excluded.last_at)
$$;
CREATE FUNCTION apc_log.note_answers(of_shard integer, first_seq bigint, last_seq bigint) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO apc_log.answers (shard, seq, at, session_id, question_id, answer_id, answered_by, outcome)
    SELECT shard, seq, at, session_id, question_id, answer_id, answered_by, outcome
    FROM apc_log.answer_rows WHERE shard = of_shard AND seq BETWEEN first_seq AND last_seq
    ON CONFLICT DO NOTHING
$$;

-- An acknowledgement is an entry of the log, which nobody can alter, in every shard; the login that wrote it is its actor.
CREATE INDEX log_events_acknowledged ON apc_log.log_events (shard, seq) WHERE kind = 'acknowledged';
CREATE FUNCTION apc_guard.record_acknowledgement(issue jsonb, note text, person text, seen_until timestamptz) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    id constant uuid := gen_random_uuid();
    name text;
BEGIN
    IF issue IS NULL OR note IS NULL OR person IS NULL OR seen_until IS NULL OR seen_until > clock_timestamp()
        OR length(note) NOT BETWEEN 1 AND 300 OR length(person) NOT BETWEEN 1 AND 256
        OR jsonb_typeof(issue) <> 'object' OR NOT issue ? 'kind' OR octet_length(issue::text) > 4096
    THEN
        RAISE EXCEPTION 'an acknowledgement names an issue, a person, and when it was seen, with a note of 1 to 300 characters'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    FOR name IN SELECT jsonb_object_keys(issue) LOOP
        IF name <> ALL (ARRAY['kind', 'code', 'rule', 'field', 'agent_id']) OR jsonb_typeof(issue -> name) <> 'string' THEN
            RAISE EXCEPTION 'an issue has no % of this kind', name USING ERRCODE = 'invalid_parameter_value';
        END IF;
    END LOOP;
    IF NOT EXISTS (SELECT FROM apc_log.agents AS one
                   WHERE one.agent_id = person AND NOT one.is_revoked AND 'operate' = ANY (one.rights)) THEN
        RAISE EXCEPTION '% is not registered with the right to operate, or was revoked', person USING ERRCODE = 'insufficient_privilege';
    END IF;
    PERFORM apc_guard.record('acknowledged', jsonb_build_object(
        'id', id::text, 'issue', issue, 'note', note, 'by', person, 'seen_until', to_char(
            seen_until AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')));
    RETURN id;
END $$;
REVOKE ALL ON FUNCTION apc_guard.record_acknowledgement(jsonb, text, text, timestamptz) FROM PUBLIC;

-- Who settles and acknowledges for a person, and can do nothing else: the web console's login, and the operator's.
DO $$
BEGIN
    IF to_regrole('apc_settler') IS NULL THEN
        CREATE ROLE apc_settler NOLOGIN;
    END IF;
EXCEPTION
    WHEN duplicate_object OR unique_violation THEN NULL;
    WHEN insufficient_privilege THEN
        RAISE NOTICE 'role apc_settler was not created (%): an administrator makes it', SQLERRM;
END $$;
DO $$
BEGIN
    GRANT USAGE ON SCHEMA apc_guard, apc_app TO apc_settler;
    GRANT EXECUTE ON FUNCTION apc_guard.record_acknowledgement(jsonb, text, text, timestamptz) TO apc_settler;
    GRANT SELECT ON apc_app.agent_effects TO apc_settler;
    GRANT UPDATE (made_at, result, problem, settled_by, is_removed) ON apc_app.agent_effects TO apc_settler;
    -- It changes what is unknown, or has lost its result: never what an agent makes now, or has made.
    CREATE POLICY settlers ON apc_app.agent_effects AS RESTRICTIVE FOR UPDATE TO apc_settler
        USING (made_at IS NULL AND lease_until <= clock_timestamp() OR made_at IS NOT NULL AND problem IS NOT NULL)
        WITH CHECK (true);
EXCEPTION
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'roles were not granted their rights (%): connect as %', SQLERRM, current_user;
END $$;
DO $$
BEGIN
    GRANT SELECT ON apc_log.troubles, apc_log.trouble_minutes, apc_log.answers, apc_log.trouble_rows, apc_log.answer_rows
        TO apc_reader, apc_writer;
    GRANT INSERT, UPDATE ON apc_log.troubles, apc_log.trouble_minutes, apc_log.answers TO apc_writer;
EXCEPTION
    WHEN insufficient_privilege OR undefined_object THEN
        RAISE NOTICE 'roles were not granted their rights (%): connect as %', SQLERRM, current_user;
END $$;
