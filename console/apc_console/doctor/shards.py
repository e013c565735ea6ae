"""Checks of the number of shards: the broker's, and the shards in which sessions are."""

import asyncpg

from apc_bus.errors import QueueMissing, ShardsDiffer
from apc_bus.rabbit.administration import queue_depth
from apc_bus.rabbit.connections import Nodes, Timing
from apc_bus.topology import gate_queue
from apc_console.connections.broker import CONNECT_PATIENCE
from apc_console.doctor.finding import Finding, ok, wrong
from apc_contracts.text import numbered
from apc_log.placement import check_places, read_open_sessions, split_sessions

CHECK = "shards"
NAMED = 3
STOP_SPLIT = (
    "stop the open ones (`apc session stop`) and start their work again under other keys; their entries are evidence "
    "and stay, so `apc log verify` goes on to report these sessions: keep its report, and compare later ones with it"
)
SET_BACK = "set it for every process, or change the number as docs/how-to/operations.md says"


async def look_at_places(pool: asyncpg.Pool, shards: int) -> list[Finding]:
    """Check that every session is in one shard, and every open one in that of APC_SHARDS."""
    findings = []
    split = await split_sessions(pool)
    if split:
        named = ", ".join(one.session_id for one in split[:NAMED]) + (", …" if len(split) > NAMED else "")
        still_open = sum(not one.is_terminal for one in split)
        what = (
            f"{numbered(len(split), 'session')} with entries in two shards, {still_open} of them open ({named}): "
            "the number of shards was changed while they ran"
        )
        findings.append(wrong(CHECK, what, STOP_SPLIT))
    try:
        lost = check_places(await read_open_sessions(pool), shards)
    except ShardsDiffer as error:
        findings.append(wrong(CHECK, str(error), SET_BACK))
    else:
        if lost:
            what = f"no number of shards fits the open sessions; with APC_SHARDS={shards} the gates take no work for "
            what += f"{numbered(len(lost), 'session')}, such as {lost[0]}"
            findings.append(wrong(CHECK, what, "leave them: their deadlines end them, and start their work again"))
    return findings or [ok(CHECK, "every session is in one shard")]


async def look_at_number(url: str, shards: int) -> list[Finding]:
    """Check that the broker has no queues of further shards; missing ones are findings of the topology."""
    seconds = CONNECT_PATIENCE.total_seconds()
    link = await Nodes([url], Timing(connect=seconds, patience=seconds)).connect("apc doctor")
    found = shards
    try:
        while True:
            await queue_depth(link, gate_queue(found), seconds)
            found += 1
    except QueueMissing:
        pass
    finally:
        await link.close(seconds)
    if found == shards:
        return []
    return [wrong(CHECK, f"APC_SHARDS is {shards}, and the broker has the queues of {found} shards", SET_BACK)]
