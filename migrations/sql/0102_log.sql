-- What the log is: packets, what happened to them, and the sessions' present state beside it.
CREATE SCHEMA apc_log;

-- The writer's head: one row a shard, locked by each transaction of the writer. Not append-only.
CREATE TABLE apc_log.shards (
    shard integer PRIMARY KEY CHECK (shard >= 0),
    epoch bigint NOT NULL,
    holder uuid,
    batch_no bigint NOT NULL,
    next_seq bigint NOT NULL CHECK (next_seq >= 1)
);

-- Every epoch that was given. A holder is fresh at each taking, so a holder found here is a repeat, even when others
-- have come after it. The mark is the last batch committed before the epoch: what of an older epoch lies at or below
-- it happened, what lies beyond it is fenced.
CREATE TABLE apc_log.shard_epochs (
    shard integer NOT NULL,
    epoch bigint NOT NULL,
    holder uuid NOT NULL,
    mark_epoch bigint NOT NULL,
    mark_batch_no bigint NOT NULL,
    opened_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (shard, epoch),
    UNIQUE (shard, holder)
);

-- References: what a packet rests on beside its parent, and the names that others can refer to. Both follow from the
-- bytes (apc_contracts.packet says how; a test keeps both equal), so the database derives them: nobody can write
-- something else.

-- Null when there are none, and when the bytes are no JSON (they are encrypted): a row must not fail for that. The writer
-- waits for this function: an evidence_ref that is no artifact hash by its length is not put to a regular expression.
CREATE FUNCTION apc_log.references_in(packet_type text, body bytea) RETURNS text[]
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
    packet jsonb;
    named text[];
    evidence text;
    digits text;
BEGIN
    packet := convert_from(body, 'UTF8')::jsonb;
    FOR evidence IN
        SELECT jsonb_array_elements_text(jsonb_path_query_array(packet, '$.proof_bundle.evidence_refs[*]'))
    LOOP
        IF length(evidence) = 71 AND starts_with(evidence, 'sha256:') THEN
            digits := lower(substr(evidence, 8));
            IF ltrim(digits, '0123456789abcdef') = '' THEN
                named := named || ('sha256:' || digits);
            END IF;
        ELSIF length(evidence) IN (36, 43)
              AND evidence ~ '^(packet:)?[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$' THEN
            named := named || ('packet:' || lower(right(evidence, 36)));
        END IF;
    END LOOP;
    IF packet_type = 'ARBITRATION' THEN
        FOR evidence IN
            SELECT jsonb_array_elements_text(jsonb_path_query_array(packet, '$.payload.candidates[*].packet_ref_ids[*]'))
        LOOP
            named := named || ('packet:' || evidence);
        END LOOP;
    ELSIF packet_type = 'ARTIFACT' AND packet #>> '{payload,artifact_hash}' IS NOT NULL THEN
        named := named || (packet #>> '{payload,artifact_hash}');
    END IF;
    RETURN named;
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
    RETURN NULL;
END $$;

CREATE FUNCTION apc_log.definitions_in(packet_type text, body bytea) RETURNS text[]
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
    payload jsonb;
    found text[];
BEGIN
    payload := convert_from(body, 'UTF8')::jsonb -> 'payload';
    SELECT array_agg(DISTINCT name ORDER BY name) INTO found FROM (
        SELECT payload ->> 'artifact_hash' AS name WHERE packet_type = 'ARTIFACT'
        UNION ALL
        SELECT 'claim:' || (payload ->> 'claim_id') WHERE packet_type = 'CLAIM'
        UNION ALL
        SELECT 'claim:' || (object ->> 'id')
        FROM jsonb_array_elements(jsonb_path_query_array(payload, '$.objects[*]')) AS object
        WHERE packet_type = 'TASK_IR' AND object ->> 'type' = 'Claim'
    ) AS named WHERE name IS NOT NULL;
    RETURN found;
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
    RETURN NULL;
END $$;

-- A packet as accepted, refused or held. The packet as jsonb is a view over the bytes (`packets`).
CREATE TABLE apc_log.agent_packets (
    shard integer NOT NULL,
    seq bigint NOT NULL CHECK (seq >= 1),
    epoch bigint NOT NULL,
    batch_no bigint NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    packet_id uuid NOT NULL,
    packet_type text NOT NULL,
    channel text NOT NULL,
    run_phase text NOT NULL,
    session_id text NOT NULL,
    run_id text NOT NULL,
    task_id text NOT NULL,
    root_packet_id uuid NOT NULL,
    parent_packet_id uuid,
    cause_packet_id uuid,
    sender_agent_id text NOT NULL,
    sender_role text NOT NULL,
    sender_swarm_id text NOT NULL,
    recipients text[] NOT NULL,
    generation bigint NOT NULL,
    round integer NOT NULL,
    step bigint NOT NULL,
    confidence double precision NOT NULL,
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    judged_at timestamptz NOT NULL,
    verdict text NOT NULL CHECK (verdict IN ('accepted', 'refused', 'held')),
    refusal_code text CHECK ((refusal_code IS NULL) = (refusal IS NULL)),
    refusal jsonb,
    contract_hash bytea NOT NULL,
    facts jsonb NOT NULL,
    body_stored bytea NOT NULL,
    stored_hash bytea NOT NULL,
    packet_hash bytea NOT NULL CHECK (octet_length(packet_hash) = 32),
    user_id text NOT NULL,
    signature text,
    -- Most packets have neither: their bytes are searched, not parsed. A key can hide behind an escape only (\u0065).
    refers_to text[] GENERATED ALWAYS AS (CASE
        WHEN packet_type IN ('ARBITRATION', 'ARTIFACT')
            OR position('evidence_refs'::bytea IN body_stored) > 0
            OR position('\\u'::bytea IN body_stored) > 0
        THEN apc_log.references_in(packet_type, body_stored)
    END) STORED,
    defines text[] GENERATED ALWAYS AS (CASE
        WHEN packet_type IN ('ARTIFACT', 'CLAIM', 'TASK_IR') THEN apc_log.definitions_in(packet_type, body_stored)
    END) STORED,
    -- How the row is read as an entry of the Merkle tree (docs/reference/log-format.md); in every table of entries.
    entry_version smallint NOT NULL DEFAULT 1,
    PRIMARY KEY (shard, seq),
    CHECK (stored_hash = sha256(body_stored))
);
-- Rows of up to 8 kB stay whole: compressing each body that passes 2 kB costs more than the row itself.
ALTER TABLE apc_log.agent_packets SET (toast_tuple_target = 8160);
CREATE INDEX agent_packets_run ON apc_log.agent_packets (run_id, shard, seq);
CREATE INDEX agent_packets_session ON apc_log.agent_packets (session_id, shard, seq);
CREATE INDEX agent_packets_task ON apc_log.agent_packets (task_id, shard, seq);
CREATE INDEX agent_packets_root ON apc_log.agent_packets (root_packet_id);
CREATE INDEX agent_packets_parent ON apc_log.agent_packets (parent_packet_id) WHERE parent_packet_id IS NOT NULL;
-- Every filter of `apc packet trace` has an index in the order of the log, so that a page stops where it is full.
CREATE INDEX agent_packets_type ON apc_log.agent_packets (packet_type, shard, seq);
CREATE INDEX agent_packets_phase ON apc_log.agent_packets (run_phase, shard, seq);
-- What was refused, in the order of the log: few beside the packets among which it stands.
CREATE INDEX agent_packets_refused ON apc_log.agent_packets (shard, seq) WHERE verdict = 'refused';
-- Children of a packet by what caused them: the other edge of the tree beside the parent.
CREATE INDEX agent_packets_cause ON apc_log.agent_packets (cause_packet_id) WHERE cause_packet_id IS NOT NULL;
-- Who refers to a packet or an artifact. Without a pending list: the closure of a retraction looks here once a packet.
CREATE INDEX agent_packets_refers_to ON apc_log.agent_packets USING gin (refers_to) WITH (fastupdate = off)
    WHERE refers_to IS NOT NULL;

-- One hop of a packet's lifecycle: what one input did to it for one recipient ('' = the whole packet).
CREATE TABLE apc_log.packet_events (
    shard integer NOT NULL,
    seq bigint NOT NULL CHECK (seq >= 1),
    epoch bigint NOT NULL,
    batch_no bigint NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    session_id text NOT NULL,
    packet_id uuid NOT NULL,
    recipient text NOT NULL,
    attempt integer NOT NULL,
    from_state text NOT NULL,
    to_state text NOT NULL,
    events text[] NOT NULL,
    occurred_at timestamptz[] NOT NULL,
    actor text NOT NULL,
    metadata jsonb,
    entry_version smallint NOT NULL DEFAULT 1,
    PRIMARY KEY (shard, seq),
    UNIQUE (session_id, packet_id, recipient, attempt, to_state),
    CHECK (cardinality(events) >= 1 AND cardinality(events) = cardinality(occurred_at))
);
-- `apc packet replay`: the hops of a session in the order of the log.
CREATE INDEX packet_events_session ON apc_log.packet_events (session_id, shard, seq);
-- The deliveries that ended as dead letters, in the order of the log: few beside the hops among which they stand.
CREATE INDEX packet_events_dead ON apc_log.packet_events (shard, seq) WHERE to_state = 'DEAD_LETTERED';

-- The lineage block of a packet.
CREATE TABLE apc_log.packet_lineage (
    shard integer NOT NULL,
    seq bigint NOT NULL CHECK (seq >= 1),
    epoch bigint NOT NULL,
    batch_no bigint NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    session_id text NOT NULL,
    packet_id uuid NOT NULL,
    protocol_id text NOT NULL,
    parent_protocol_ids text[] NOT NULL,
    ancestor_swarms text[] NOT NULL,
    cross_use_case boolean NOT NULL,
    transfer_mode text NOT NULL,
    from_swarm text,
    to_swarm text,
    sender_score double precision,
    receiver_score double precision,
    entry_version smallint NOT NULL DEFAULT 1,
    PRIMARY KEY (shard, seq),
    UNIQUE (session_id, packet_id)
);
CREATE INDEX packet_lineage_protocol ON apc_log.packet_lineage (protocol_id, shard, seq);

-- A transition or a barrier of a session.
CREATE TABLE apc_log.coordination_events (
    shard integer NOT NULL,
    seq bigint NOT NULL CHECK (seq >= 1),
    epoch bigint NOT NULL,
    batch_no bigint NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    session_id text NOT NULL,
    round integer NOT NULL,
    generation bigint NOT NULL,
    step bigint NOT NULL,
    cause_packet_id uuid NOT NULL,
    event text NOT NULL,
    from_state text NOT NULL,
    to_state text NOT NULL,
    facts jsonb NOT NULL,
    entry_version smallint NOT NULL DEFAULT 1,
    PRIMARY KEY (shard, seq),
    UNIQUE (session_id, step, event)
);

-- What takes no id: kinds of the gate (docs/specification/contract.md sections 9 and 12) and of the writer (apc_persister.entries).
CREATE TABLE apc_log.packet_conflicts (
    shard integer NOT NULL,
    seq bigint NOT NULL CHECK (seq >= 1),
    epoch bigint NOT NULL,
    batch_no bigint NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    session_id text,
    packet_id uuid,
    kind text NOT NULL,
    code text,
    reason text NOT NULL,
    raw bytea NOT NULL,
    first_hash bytea,
    second_hash bytea,
    user_id text,
    entry_version smallint NOT NULL DEFAULT 1,
    PRIMARY KEY (shard, seq)
);
CREATE INDEX packet_conflicts_packet ON apc_log.packet_conflicts (packet_id) WHERE packet_id IS NOT NULL;
-- The conflicts of a session, for its trace and replay.
CREATE INDEX packet_conflicts_session ON apc_log.packet_conflicts (session_id, shard, seq)
    WHERE session_id IS NOT NULL;

-- An agent added, changed, revoked; every shard logs every change.
CREATE TABLE apc_log.registry_events (
    shard integer NOT NULL,
    seq bigint NOT NULL CHECK (seq >= 1),
    epoch bigint NOT NULL,
    batch_no bigint NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    change_id uuid NOT NULL,
    agent_id text NOT NULL,
    change jsonb NOT NULL,
    entry_version smallint NOT NULL DEFAULT 1,
    PRIMARY KEY (shard, seq),
    UNIQUE (change_id, shard)
);

-- What was done to the log itself: erasure, maintenance.
CREATE TABLE apc_log.log_events (
    shard integer NOT NULL,
    seq bigint NOT NULL CHECK (seq >= 1),
    epoch bigint NOT NULL,
    batch_no bigint NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    kind text NOT NULL,
    actor text NOT NULL,
    detail jsonb NOT NULL,
    entry_version smallint NOT NULL DEFAULT 1,
    PRIMARY KEY (shard, seq)
);

-- What dedupe uses; never partitioned nor archived.
CREATE TABLE apc_log.packet_ids (
    session_id text NOT NULL,
    packet_id uuid NOT NULL,
    packet_hash bytea NOT NULL,
    payload_hash bytea NOT NULL,
    shard integer NOT NULL,
    seq bigint NOT NULL,
    PRIMARY KEY (session_id, packet_id)
);
-- `apc packet trace --packet-id` and proofs know no session.
CREATE INDEX packet_ids_packet ON apc_log.packet_ids (packet_id);

-- Beside the log, not append-only: written in the same transaction as the entries they follow from.
CREATE TABLE apc_log.sessions (
    session_id text PRIMARY KEY,
    shard integer NOT NULL,
    epoch bigint NOT NULL,
    batch_no bigint NOT NULL,
    run_id text NOT NULL,
    state text NOT NULL,
    is_terminal boolean NOT NULL,
    round integer NOT NULL,
    generation bigint NOT NULL,
    step bigint NOT NULL,
    open_deliveries integer NOT NULL,
    document jsonb NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),
    -- What a gate that takes the shard has to look at.
    is_open boolean NOT NULL GENERATED ALWAYS AS (open_deliveries > 0 OR NOT is_terminal) STORED
)
-- Each batch rewrites the rows it touches: room on the page keeps these updates out of the indexes.
WITH (fillfactor = 60);
CREATE INDEX sessions_run ON apc_log.sessions (run_id);
CREATE INDEX sessions_open ON apc_log.sessions (shard) WHERE is_open;
-- Sessions with a verification that was begun: a gate that takes the shard goes on with it.
CREATE FUNCTION apc_log.is_verifying(document jsonb) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN coalesce((document ->> 'verifying')::bigint, 0) > 0;
CREATE INDEX sessions_verifying ON apc_log.sessions (shard) WHERE apc_log.is_verifying(document);
