"""The SQL of PostgresEffectStore. One statement is one transaction: the primary key decides who makes an effect."""

_STATE = """
CASE WHEN made_at IS NOT NULL THEN CASE WHEN problem IS NULL THEN 'MADE' ELSE 'RESULT_LOST' END
     WHEN lease_until > clock_timestamp() THEN 'RUNNING' ELSE 'UNKNOWN' END
"""
_COLUMNS = f"""
packet_id, agent_id, key, claim_id, session_id, worker, {_STATE} AS state, claimed_at, made_at, result::text AS result,
problem, settled_by
"""
_PLACE = "packet_id = $1 AND agent_id = $2 AND key = $3"
_HELD = f"{_PLACE} AND claim_id = $4 AND made_at IS NULL"

CLAIM = f"""
INSERT INTO apc_app.agent_effects (packet_id, agent_id, key, claim_id, session_id, worker, expires_at, lease_until)
VALUES ($1, $2, $3, $4, $5, $6, $7, clock_timestamp() + $8::interval)
ON CONFLICT (packet_id, agent_id, key) DO NOTHING RETURNING {_COLUMNS}
"""

GET = f"SELECT {_COLUMNS} FROM apc_app.agent_effects WHERE {_PLACE}"

RENEW = f"UPDATE apc_app.agent_effects SET lease_until = clock_timestamp() + $5::interval WHERE {_HELD}"

RECORD = f"""
UPDATE apc_app.agent_effects SET made_at = clock_timestamp(), result = $5::text::jsonb, problem = $6 WHERE {_HELD}
"""

INTERRUPT = f"UPDATE apc_app.agent_effects SET lease_until = clock_timestamp(), problem = $5 WHERE {_HELD}"

WITHDRAW = f"DELETE FROM apc_app.agent_effects WHERE {_HELD}"

SETTLE = f"""
UPDATE apc_app.agent_effects
SET made_at = coalesce(made_at, clock_timestamp()), result = $4::text::jsonb, problem = NULL, settled_by = $5
WHERE {_PLACE} AND {_STATE} IN ('UNKNOWN', 'RESULT_LOST') RETURNING true
"""

RELEASE = f"DELETE FROM apc_app.agent_effects WHERE {_PLACE} AND {_STATE} = 'UNKNOWN' RETURNING true"

LIST = f"""
SELECT {_COLUMNS} FROM apc_app.agent_effects
WHERE ($1::text IS NULL OR agent_id = $1) AND ($2::uuid IS NULL OR packet_id = $2)
  AND ($3::text[] IS NULL OR {_STATE} = ANY($3))
ORDER BY claimed_at DESC, packet_id, key LIMIT $4
"""

PURGE = """
DELETE FROM apc_app.agent_effects
WHERE agent_id = $1 AND made_at IS NOT NULL AND expires_at < clock_timestamp() - $2::interval RETURNING true
"""
