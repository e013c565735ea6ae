"""Rebuilds from the entries of the log what stands beside it: for a database whose projections were spoiled.

Counts and rulings follow from the entries alone. The edge of the tree follows from the entries too, and the last signed
checkpoint says whether it is the right one. Sessions are played again. Ids of packets and contracts that are missing
are added; those that are there are append-only, and stay as they are. The registry is a view, which cannot be spoiled.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import asyncpg
import orjson

from apc_contracts.contract.contract import Contract
from apc_contracts.errors import PacketRefused
from apc_contracts.limits import DocumentLimits
from apc_contracts.replay.entries import ReplayDiffers, ReplayImpossible, as_json
from apc_contracts.session.session import Session
from apc_contracts.wire.parsing import read_packet
from apc_log.batch import SessionUpdate
from apc_log.heads import AnyConnection
from apc_log.merkle import Tree
from apc_log.queries.replay import ContractBook, PostgresRecords
from apc_persister.errors import RebuildImpossible, TreeBroken
from apc_persister.evidence.rows import prepare_reader, read_leaves
from apc_persister.evidence.tree import load_tree
from apc_persister.follower import empty_projections
from apc_persister.verification.sessions import UNPLAYABLE, list_sessions, play_session
from apc_persister.verification.verify import UNREADABLE

# Rebuilds the rows of table sessions: each session is played again from its entries, under its contracts.

_LOGGED = DocumentLimits(is_logged=True)
_UNNAMED = "DELETE FROM apc_log.sessions WHERE session_id IS NULL"
_DELETE = "DELETE FROM apc_log.sessions WHERE session_id = $1"
_INSERT = """
INSERT INTO apc_log.sessions (shard, epoch, batch_no, session_id, run_id, state, is_terminal,
                              round, generation, step, open_deliveries, document)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12::text::jsonb)
"""
_STORED = """
SELECT shard, run_id, state, is_terminal, round, generation, step, open_deliveries, document::text AS document
FROM apc_log.sessions WHERE session_id = $1
"""


@dataclass(slots=True)
class RebuiltSessions:
    """What a rebuild of the sessions did."""

    mended: int = 0
    """Rows that were not what the entries say, and are again."""
    left: list[str] = field(default_factory=list)
    """Why a session could not be played again, a sentence each: its row stays as it is."""


async def rebuild_sessions(connection: AnyConnection, contracts: Iterable[Contract]) -> RebuiltSessions:
    """Make the row of each session what its entries say, in the transaction of the connection.

    `contracts` are available beside those that the log holds.
    """
    done = RebuiltSessions()
    records = PostgresRecords(connection, trusts_ranges=False)
    book = ContractBook(records, contracts)
    await connection.execute(_UNNAMED)
    for session_id in await list_sessions(connection):
        try:
            async with connection.transaction():
                done.mended += await _mend(connection, records, book, session_id)
        except (ReplayDiffers, ReplayImpossible, *UNREADABLE, *UNPLAYABLE) as error:
            done.left.append(f"session {session_id!r}: {error}")
    return done


async def _mend(connection: AnyConnection, records: PostgresRecords, book: ContractBook, session_id: str) -> bool:
    """Return whether the row had to be changed."""
    replay, last = await play_session(records, book, session_id)
    stored = await connection.fetch(_STORED, session_id)
    if replay.session is None or last is None:
        await connection.execute(_DELETE, session_id)
        return bool(stored)
    row = _row(session_id, replay.session)
    wanted = {"shard": last.shard, **{name: getattr(row, name) for name in SessionUpdate.__struct_fields__[1:]}}
    if len(stored) == 1 and _readable(dict(stored[0])) == _readable(wanted):
        return False
    await connection.execute(_DELETE, session_id)
    columns = [getattr(row, name) for name in SessionUpdate.__struct_fields__[:-1]]
    await connection.execute(_INSERT, last.shard, last.epoch, last.batch_no, *columns, row.document.decode())
    return True


def _row(session_id: str, session: Session) -> SessionUpdate:
    document = session.document
    return SessionUpdate(
        session_id=session_id,
        run_id=document.run_id,
        state=document.state,
        is_terminal=session.is_terminal,
        round=document.round,
        generation=document.generation,
        step=document.step,
        open_deliveries=session.open_deliveries,
        document=orjson.dumps(as_json(document)),
    )


def _readable(columns: dict[str, object]) -> dict[str, object]:
    """Return the columns with the document as what it says, not how it is written."""
    text = columns["document"]
    assert isinstance(text, str | bytes)
    return columns | {"document": orjson.loads(text)}


COUNTS = ("task_tallies", "transfer_rulings", "protocol_tallies", "protocol_tasks", "protocol_runs")
"""Tables of schema apc_log that function `tally` fills."""
SUMS = ("run_changes", "protocol_sums", "summed_uses")
"""What function `sum_run` makes of them, and when; the persister sums the runs again (apc_persister.service)."""
_IS_RELEASED = "SELECT EXISTS (SELECT FROM apc_log.segments WHERE state IN ('released', 'expired'))"
_HEADS = "SELECT shard, next_seq FROM apc_log.shards WHERE moved_to IS NULL ORDER BY shard FOR UPDATE"
_SIGNED = """
SELECT tree_size, root_hash FROM apc_log.log_checkpoints WHERE shard = $1 ORDER BY tree_size DESC LIMIT 1
"""
_STORE_EDGE = """
INSERT INTO apc_log.log_edges (shard, tree_size, hashes) VALUES ($1, $2, $3)
ON CONFLICT (shard) DO UPDATE SET tree_size = excluded.tree_size, hashes = excluded.hashes
"""
_MISSING_IDS = """
SELECT packet.session_id, packet.packet_id, packet.packet_hash, packet.shard, packet.seq, packet.body_stored AS body
FROM apc_log.agent_packets AS packet LEFT JOIN apc_log.packet_ids AS named USING (session_id, packet_id)
WHERE named.session_id IS NULL
"""
_ADD_ID = """
INSERT INTO apc_log.packet_ids (session_id, packet_id, packet_hash, payload_hash, shard, seq)
VALUES ($1, $2, $3, $4, $5, $6)
"""
_ADD_CONTRACT = """
INSERT INTO apc_log.contracts (contract_hash, document)
SELECT $1, $2 WHERE EXISTS (SELECT FROM apc_log.agent_packets WHERE contract_hash = $1) ON CONFLICT DO NOTHING
"""
_PIECE = 50_000


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a rebuild did."""

    shards: int
    edges: int
    """Trees whose edge was not the signed one, and is again."""
    rows: int
    """Rows of counts and rulings that were made."""
    packet_ids: int
    """Ids of packets that were missing."""
    contracts: int
    """Contracts that entries name, that were missing and are available."""
    sessions: RebuiltSessions


async def rebuild_projections(connection: AnyConnection, contracts: Sequence[Contract] = ()) -> Rebuilt:
    """Rebuild ids, counts, rulings, edges and sessions; all of it or nothing. Writers wait meanwhile.

    The user needs the rights of apc_owner. `contracts` are available beside those that the log holds.

    Raises:
        RebuildImpossible: entries were released: what follows from them would be lost; nothing was changed.
        TreeBroken: the entries do not give the root that was signed last; nothing was changed.
    """
    async with connection.transaction():
        if await connection.fetchval(_IS_RELEASED):
            raise RebuildImpossible
        heads = await connection.fetch(_HEADS)
        edges = [await _mend_edge(connection, head["shard"]) for head in heads]
        added = [await connection.execute(_ADD_CONTRACT, contract.hash, contract.body) for contract in contracts]
        ids = await _add_ids(connection)
        for table in (*COUNTS, *SUMS):
            await connection.execute(f"DELETE FROM apc_log.{table}")
        await empty_projections(connection)
        for head in heads:
            await connection.execute("SELECT apc_log.tally($1, 1, $2)", head["shard"], head["next_seq"] - 1)
        rows = [await connection.fetchval(f"SELECT count(*) FROM apc_log.{table}") for table in COUNTS]
        sessions = await rebuild_sessions(connection, contracts)
    return Rebuilt(len(heads), sum(edges), sum(rows), ids, added.count("INSERT 0 1"), sessions)


async def _add_ids(connection: AnyConnection) -> int:
    rows = await connection.fetch(_MISSING_IDS)
    for row in rows:
        place = (row["shard"], row["seq"])
        await connection.execute(
            _ADD_ID, row["session_id"], row["packet_id"], row["packet_hash"], _payload_hash(row), *place
        )
    return len(rows)


def _payload_hash(row: asyncpg.Record) -> bytes:
    """Return the hash of the payload; where the body is encrypted or unreadable that of the packet.

    With the latter a repeat in another envelope is taken for another packet, and refused.
    """
    try:
        return read_packet(row["body"], _LOGGED).payload_hash
    except (PacketRefused, ValueError):
        packet_hash: bytes = row["packet_hash"]
        return packet_hash


async def _mend_edge(connection: AnyConnection, shard: int) -> bool:
    """Return whether the edge had to be rebuilt. An edge that fits the last checkpoint costs no reading."""
    signed = await connection.fetchrow(_SIGNED, shard)
    size, root = (signed["tree_size"], signed["root_hash"]) if signed is not None else (0, Tree().root)
    with suppress(TreeBroken):  # an edge that no writer can have stored
        stored = await load_tree(connection, shard)
        if (stored.size, stored.root) == (size, root):
            return False
    tree = await _read_tree(connection, shard, size)
    if tree.root != root:
        raise TreeBroken(shard, f"the entries up to {size} do not give the root that was signed last")
    await connection.execute(_STORE_EDGE, shard, tree.size, list(tree.edge))
    return True


async def _read_tree(connection: AnyConnection, shard: int, size: int) -> Tree:
    await prepare_reader(connection)
    tree = Tree()
    while tree.size < size:
        leaves = await read_leaves(connection, shard, tree.size + 1, min(tree.size + _PIECE, size))
        tree, _ = tree.extend(leaves.hashes)
    return tree
