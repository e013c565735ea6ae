"""Heads and checkpoints of the log, and what this server is."""

from base64 import b64encode
from importlib.metadata import version

import asyncpg

from apc_log.queries.health import ShardEnd, list_shard_ends
from apc_web.access.caller import AccountRole, caller
from apc_web.models.log import CheckpointList, ServerAbout, ShardCheckpoint
from apc_web.route_services import Services


async def checkpoint_list(pool: asyncpg.Pool) -> CheckpointList:
    """Return heads, newest checkpoints and exports, by shard."""
    return CheckpointList(items=[_checkpoint(row) for row in await list_shard_ends(pool)])


async def about(services: Services) -> ServerAbout:
    """Return what this server is, and what the caller may do."""
    found = caller()
    is_operator = found.role.includes(AccountRole.OPERATOR)
    no_role = None if is_operator else f"this needs the role operator; yours is {found.role}"
    no_acts = no_role if services.acts is not None else services.why_no_acts or "this server has no acts"
    if services.acts is not None and is_operator:
        no_acts = await services.acts.why_not(found.person)
    return ServerAbout(
        version=version("apc-bus"),
        can_act=no_acts is None,
        why_not=no_acts,
        can_chat=services.chats is not None and is_operator,
        why_no_chat=services.why_no_chat if services.chats is None else no_role,
        user=found.name,
        role=found.role,
        has_accounts=services.accounts is not None,
        database="embedded" if services.is_embedded else "server",
        run_id=services.run_id,
    )


def _checkpoint(row: ShardEnd) -> ShardCheckpoint:
    return ShardCheckpoint(
        shard=row.shard,
        epoch=row.epoch,
        next_seq=row.next_seq,
        tree_size=row.tree_size,
        root_hash=None if row.root_hash is None else b64encode(row.root_hash).decode(),
        note=row.note,
        recorded_at=row.recorded_at,
        exported=row.exported,
        exported_at=row.exported_at,
    )
