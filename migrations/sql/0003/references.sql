-- References: what a packet rests on beside its parent, and the names that others can refer to. Both follow from the
-- bytes (apc_contracts.envelope.references says how; a test keeps both equal), so the database derives them: nobody can write
-- something else, and where the bytes are encrypted they are null.

CREATE FUNCTION apc_log.reference_of(evidence text) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE RETURN CASE
    WHEN evidence ~ '^(packet:)?[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$'
        THEN 'packet:' || lower(right(evidence, 36))
    WHEN evidence ~ '^sha256:[0-9a-fA-F]{64}$' THEN lower(evidence)
END;

-- Null when there are none, and when the bytes are no JSON (they are encrypted): a row must not fail for that.
CREATE FUNCTION apc_log.references_in(packet_type text, body bytea) RETURNS text[]
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
    packet jsonb;
    found text[];
BEGIN
    packet := convert_from(body, 'UTF8')::jsonb;
    SELECT array_agg(reference ORDER BY reference) INTO found FROM (
        SELECT apc_log.reference_of(evidence) AS reference
        FROM jsonb_array_elements_text(jsonb_path_query_array(packet, '$.proof_bundle.evidence_refs[*]')) AS evidence
        UNION
        SELECT 'packet:' || packet_id
        FROM jsonb_array_elements_text(jsonb_path_query_array(packet, '$.payload.candidates[*].packet_ref_ids[*]'))
            AS packet_id
        WHERE packet_type = 'ARBITRATION'
        UNION
        SELECT packet #>> '{payload,artifact_hash}' WHERE packet_type = 'ARTIFACT'
    ) AS named WHERE reference IS NOT NULL;
    RETURN found;
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

-- Most packets have neither: their bytes are searched, not parsed. A key can hide behind an escape only (\u0065).
ALTER TABLE apc_log.agent_packets
    ADD COLUMN refers_to text[] GENERATED ALWAYS AS (CASE
        WHEN packet_type IN ('ARBITRATION', 'ARTIFACT')
            OR position('evidence_refs'::bytea IN body_stored) > 0
            OR position('\\u'::bytea IN body_stored) > 0
        THEN apc_log.references_in(packet_type, body_stored)
    END) STORED,
    ADD COLUMN defines text[] GENERATED ALWAYS AS (CASE
        WHEN packet_type IN ('ARTIFACT', 'CLAIM', 'TASK_IR') THEN apc_log.definitions_in(packet_type, body_stored)
    END) STORED;

-- Sessions with a verification that was begun: a gate that takes the shard goes on with it.
CREATE FUNCTION apc_log.is_verifying(document jsonb) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN coalesce((document ->> 'verifying')::bigint, 0) > 0;
CREATE INDEX sessions_verifying ON apc_log.sessions (shard) WHERE apc_log.is_verifying(document);
