"""What stands beside the log and follows from it: the sessions' present state, the registry `agents`, and the counts
that lineage summaries are read from."""

from collections.abc import Iterable, Sequence
from datetime import datetime

import orjson

from apc_bus.log_batch import HopEntry, PacketEntry, RegistryEntry, SessionRow
from apc_contracts.errors import PacketRefused
from apc_contracts.vocabulary import PacketType
from apc_persister.conflicts import UNSTORABLE, unstorable
from apc_persister.connection import AnyConnection
from apc_persister.intake import Intake
from apc_persister.rows import Placed
from apc_persister.store import ENTRY_ERRORS, store

_REGISTRY_LOCK = 0x617063_72656769

_UPSERT_SESSIONS = """
INSERT INTO apc_log.sessions (shard, epoch, batch_no, session_id, run_id, state, is_terminal,
                              round, generation, step, open_deliveries, document)
SELECT $1, * FROM unnest($2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::boolean[],
                         $8::integer[], $9::integer[], $10::bigint[], $11::integer[], $12::jsonb[])
ON CONFLICT (session_id) DO UPDATE SET
    shard = excluded.shard, epoch = excluded.epoch, batch_no = excluded.batch_no, run_id = excluded.run_id,
    state = excluded.state, is_terminal = excluded.is_terminal, round = excluded.round,
    generation = excluded.generation, step = excluded.step, open_deliveries = excluded.open_deliveries,
    document = excluded.document, updated_at = excluded.updated_at
"""
_KNOWN_CHANGES = "SELECT change_id FROM apc_log.registry_events WHERE change_id = ANY($1::uuid[])"
_ADD_AGENT = """
INSERT INTO apc_log.agents (agent_id, broker_user, role, swarm_id, rights, handles, public_keys, change_id)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT (agent_id) DO UPDATE SET
    broker_user = excluded.broker_user, role = excluded.role, swarm_id = excluded.swarm_id,
    rights = excluded.rights, handles = excluded.handles, public_keys = excluded.public_keys,
    is_revoked = false, change_id = excluded.change_id, updated_at = now()
"""
_REVOKE_AGENT = """
UPDATE apc_log.agents SET is_revoked = true, change_id = $2, updated_at = now() WHERE agent_id = $1
"""
_TALLY = "SELECT apc_log.tally($1, $2, $3)"
_TALLIED = frozenset({PacketType.TRANSFER, PacketType.EVAL})

SessionState = tuple[int, int, SessionRow]
"""epoch, batch_no, row."""


async def project_sessions(connection: AnyConnection, shard: int, states: Sequence[SessionState]) -> None:
    """Upsert the sessions that the batches touched. Raises one of ENTRY_ERRORS on a document that is no
    JSON."""
    if not states:
        return
    rows = [row for _, _, row in states]
    await connection.execute(
        _UPSERT_SESSIONS,
        shard,
        [epoch for epoch, _, _ in states],
        [batch_no for _, batch_no, _ in states],
        *([getattr(row, name) for row in rows] for name in SessionRow.__struct_fields__),
    )


async def project_sessions_carefully(connection: AnyConnection, intake: Intake, now: datetime) -> None:
    """As `project_sessions`, one by one: a state that cannot be stored is recorded as a conflict, at the
    end."""
    for state in intake.sessions.values():
        try:
            async with connection.transaction():
                await project_sessions(connection, intake.head.shard, [state])
        except ENTRY_ERRORS as error:
            epoch, batch_no, row = state
            intake.place([unstorable(row, UNSTORABLE, error)], epoch, batch_no, now)
            await store(connection, intake.placed[-1:], now)


async def tally(connection: AnyConnection, placed: Sequence[Placed]) -> None:
    """Count the verdicts on TRANSFERs and the metrics of EVALs among these entries, all of one shard, once stored.

    What they say is read back by the views that define it (migrations 0008 and 0016), so both cannot differ.
    """
    if any(_is_tallied(item) for item in placed):
        (shard, first, _, _), (_, last, _, _) = placed[0].place, placed[-1].place
        await connection.execute(_TALLY, shard, first, last)


def _is_tallied(item: Placed) -> bool:
    match item.entry:
        case PacketEntry(packet_type=packet_type):
            return packet_type in _TALLIED
        case HopEntry(recipient="", from_state="SCHEMA_VALIDATED"):
            return True
    return False


async def new_changes(connection: AnyConnection, placed: Iterable[Placed]) -> list[RegistryEntry]:
    """The registry changes that no shard has logged yet, in order.

    Every shard logs every change, all in the same order: so the first shard to log one applies it, and the
    order is kept. The lock makes "first" mean something; it is held until the transaction ends. Call before
    `store`.
    """
    changes = [item.entry for item in placed if isinstance(item.entry, RegistryEntry)]
    if not changes:
        return []
    await connection.execute("SELECT pg_advisory_xact_lock($1)", _REGISTRY_LOCK)
    rows = await connection.fetch(_KNOWN_CHANGES, [change.change_id for change in changes])
    known = {row[0] for row in rows}
    return [change for change in changes if change.change_id not in known]


async def apply_change(connection: AnyConnection, entry: RegistryEntry) -> None:
    """Bring one registry change into `agents`. Raises one of ENTRY_ERRORS on a change that breaks the contract."""
    # Rare, and the models of the contract take a while to import.
    from apc_contracts.registry_change import AgentRevoked, parse_registry_change

    try:
        change = parse_registry_change(entry.change)
    except PacketRefused as error:
        raise ValueError(str(error)) from error
    if isinstance(change, AgentRevoked):
        await connection.execute(_REVOKE_AGENT, change.agent_id, change.change_id)
        return
    await connection.execute(
        _ADD_AGENT,
        change.agent_id,
        change.broker_user,
        change.role,
        change.swarm_id,
        list(change.rights),
        list(change.handles),
        orjson.dumps(dict(change.public_keys)),
        change.change_id,
    )
