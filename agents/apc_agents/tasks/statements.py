"""The SQL of PostgresTaskStore. Where a status changes, the row is locked until its event is written with it."""

GET = "SELECT * FROM apc_app.agent_tasks WHERE task_id = $1"

LIST = """
SELECT * FROM apc_app.agent_tasks
WHERE ($1::text IS NULL OR agent_id = $1) AND ($2::text IS NULL OR session_id = $2)
  AND ($3::text[] IS NULL OR status = ANY($3))
ORDER BY created_at DESC, task_id DESC LIMIT $4
"""

INSERT = """
INSERT INTO apc_app.agent_tasks (task_id, agent_id, session_id, spec, depends_on)
VALUES ($1, $2, $3, $4::text::jsonb, $5) ON CONFLICT (task_id) DO NOTHING RETURNING *
"""

# NO KEY: an attempt that makes an effect, or a row that refers to the task, must not hide it.
CLAIM = """
WITH next AS (
    SELECT task_id FROM apc_app.agent_tasks AS task
    WHERE agent_id = $1
      AND (status = 'PENDING' OR (status = 'RUNNING' AND lease_until < clock_timestamp()))
      AND NOT EXISTS (
          SELECT FROM apc_app.agent_tasks AS needed
          WHERE needed.task_id = ANY(task.depends_on) AND needed.status <> 'SUCCEEDED'
      )
    ORDER BY created_at, task_id LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE apc_app.agent_tasks AS task
SET status = 'RUNNING', attempt = attempt + 1, lost_leases = lost_leases + (status = 'RUNNING')::int, worker = $2,
    lease_until = clock_timestamp() + $3::interval, started_at = coalesce(started_at, clock_timestamp())
FROM next WHERE task.task_id = next.task_id RETURNING task.*
"""

RESULT = "SELECT result FROM apc_app.agent_tasks WHERE task_id = $1"

RENEW = """
UPDATE apc_app.agent_tasks SET lease_until = clock_timestamp() + $3::interval
WHERE task_id = $1 AND attempt = $2 AND status = 'RUNNING' RETURNING cancel_reason
"""

PROGRESS = """
UPDATE apc_app.agent_tasks SET progress = $3, note = $4
WHERE task_id = $1 AND attempt = $2 AND status = 'RUNNING' RETURNING *
"""

TOLD_PROGRESS = "UPDATE apc_app.agent_tasks SET told_progress = $2 WHERE task_id = $1"

FINISH = """
UPDATE apc_app.agent_tasks
SET status = $3, result = $4::text::jsonb, error = $5, finished_at = clock_timestamp(), lease_until = NULL,
    progress = CASE WHEN $3 = 'SUCCEEDED' THEN 1 ELSE progress END
WHERE task_id = $1 AND attempt = $2 AND status = 'RUNNING' RETURNING *
"""

RELEASE = """
UPDATE apc_app.agent_tasks SET status = 'PENDING', worker = NULL, lease_until = NULL
WHERE task_id = $1 AND attempt = $2 AND status = 'RUNNING' RETURNING *
"""

# A key share lock lets the lease be renewed meanwhile; that the effect is made once is the primary key's doing.
HOLD = """
SELECT * FROM apc_app.agent_tasks WHERE task_id = $1 AND attempt = $2 AND status = 'RUNNING' FOR KEY SHARE
"""

RECORD_EFFECT = """
INSERT INTO apc_app.agent_task_effects (task_id, name) VALUES ($1, $2)
ON CONFLICT (task_id, name) DO NOTHING RETURNING true
"""

KEEP_EFFECT = "UPDATE apc_app.agent_task_effects SET value = $3::text::jsonb WHERE task_id = $1 AND name = $2"

EFFECT = "SELECT value FROM apc_app.agent_task_effects WHERE task_id = $1 AND name = $2"

# At once only when no worker has it: PENDING, or the lease of a worker that died.
CANCEL = """
UPDATE apc_app.agent_tasks
SET status = 'CANCELLED', error = $2, finished_at = clock_timestamp(), lease_until = NULL
WHERE task_id = $1 AND (status = 'PENDING' OR (status = 'RUNNING' AND lease_until < clock_timestamp()))
RETURNING *
"""

ASK_TO_CANCEL = """
UPDATE apc_app.agent_tasks SET cancel_reason = coalesce(cancel_reason, $2)
WHERE task_id = $1 AND status = 'RUNNING' RETURNING *
"""

ONE_AT_A_TIME = "SELECT pg_advisory_xact_lock(hashtextextended('apc_app.agent_tasks/' || $1, 0))"

END_ABANDONED = """
UPDATE apc_app.agent_tasks
SET status = CASE WHEN cancel_reason IS NULL THEN 'FAILED' ELSE 'CANCELLED' END, error = coalesce(cancel_reason, $3),
    finished_at = clock_timestamp(), lease_until = NULL
WHERE agent_id = $1 AND status = 'RUNNING' AND lease_until < clock_timestamp()
  AND (cancel_reason IS NOT NULL OR lost_leases + 1 >= $2)
RETURNING *
"""

FAILED_NEEDS = """
SELECT DISTINCT ON (task.task_id) task.task_id, needed.task_id AS needed
FROM apc_app.agent_tasks AS task JOIN apc_app.agent_tasks AS needed ON needed.task_id = ANY(task.depends_on)
WHERE task.agent_id = $1 AND task.status = 'PENDING' AND needed.status IN ('FAILED', 'CANCELLED')
ORDER BY task.task_id, array_position(task.depends_on, needed.task_id)
"""

ADD_EVENT = """
INSERT INTO apc_app.agent_task_events (task_id, number, packet_id, document)
SELECT $1, coalesce(max(number), 0) + 1, $2, $3::text::jsonb FROM apc_app.agent_task_events WHERE task_id = $1
"""

PURGE = """
DELETE FROM apc_app.agent_tasks AS task
WHERE finished_at < $1 AND ($2::text IS NULL OR agent_id = $2)
  AND NOT EXISTS (
      SELECT FROM apc_app.agent_tasks AS waiting
      WHERE waiting.status IN ('PENDING', 'RUNNING') AND task.task_id = ANY(waiting.depends_on)
  )
  AND NOT EXISTS (
      SELECT FROM apc_app.agent_task_events AS event
      WHERE event.task_id = task.task_id AND event.announced_at IS NULL
  )
"""

UNANNOUNCED = """
SELECT event.task_id, event.number, event.packet_id, event.document, task.session_id, task.spec
FROM apc_app.agent_task_events AS event JOIN apc_app.agent_tasks AS task USING (task_id)
WHERE event.announced_at IS NULL AND task.agent_id = $1
ORDER BY event.made_at, event.task_id, event.number LIMIT $2
"""

ANNOUNCED = """
UPDATE apc_app.agent_task_events SET announced_at = clock_timestamp() WHERE task_id = $1 AND number = $2
"""
