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
CREATE INDEX agent_packets_type_time ON apc_log.agent_packets (packet_type, judged_at);

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
    PRIMARY KEY (shard, seq),
    UNIQUE (session_id, packet_id, recipient, attempt, to_state),
    CHECK (cardinality(events) >= 1 AND cardinality(events) = cardinality(occurred_at))
);

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
    PRIMARY KEY (shard, seq)
);
CREATE INDEX packet_conflicts_packet ON apc_log.packet_conflicts (packet_id) WHERE packet_id IS NOT NULL;

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
    PRIMARY KEY (shard, seq)
);

-- Signed tree heads and full tiles of level >= 1; both are about entries, not entries themselves.
CREATE TABLE apc_log.log_checkpoints (
    shard integer NOT NULL,
    tree_size bigint NOT NULL CHECK (tree_size >= 0),
    root_hash bytea NOT NULL CHECK (octet_length(root_hash) = 32),
    note text NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (shard, tree_size)
);
CREATE TABLE apc_log.log_tiles (
    shard integer NOT NULL,
    level integer NOT NULL CHECK (level >= 1),
    index bigint NOT NULL CHECK (index >= 0),
    hashes bytea NOT NULL CHECK (octet_length(hashes) = 8192),
    recorded_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (shard, level, index)
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

SELECT apc_guard.protect(name::regclass)
FROM unnest(ARRAY[
    'apc_log.agent_packets', 'apc_log.packet_events', 'apc_log.packet_lineage', 'apc_log.coordination_events',
    'apc_log.packet_conflicts', 'apc_log.registry_events', 'apc_log.log_events', 'apc_log.log_checkpoints',
    'apc_log.log_tiles', 'apc_log.packet_ids', 'apc_log.shard_epochs'
]) AS name;
