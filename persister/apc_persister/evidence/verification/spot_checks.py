"""What can be told of a log without reading it: where it ends, and whether the registry's changes are in the tree."""

from apc_log.connection import AnyConnection
from apc_persister.errors import TreeBroken
from apc_persister.evidence.shards import list_shards
from apc_persister.evidence.stored_rows import prepare_reader, read_leaves
from apc_persister.evidence.tree.merkle import HASH_SIZE, TILE_WIDTH
from apc_persister.evidence.tree.tiles import Tiles
from apc_persister.evidence.tree.tree_signer import load_tree
from apc_persister.evidence.verification.findings import LogFinding, Report
from apc_persister.evidence.verification.log_ends import read_ends

_LAST_ROOT = "SELECT root_hash FROM apc_log.log_checkpoints WHERE shard = $1 ORDER BY tree_size DESC LIMIT 1"
_CHANGES = "SELECT shard, array_agg(seq ORDER BY seq) AS numbers FROM apc_log.registry_events GROUP BY shard ORDER BY 1"


async def check_ends(connection: AnyConnection) -> list[LogFinding]:
    """Report rows after the last checkpoint that no gate sent, and heads and edges that do not fit."""
    findings: list[LogFinding] = []
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        for shard in await list_shards(connection):
            report = Report(shard)
            ends = await read_ends(connection, shard, report)
            if ends.tree is not None and ends.size:
                root = await connection.fetchval(_LAST_ROOT, shard)
                if root != ends.tree.root:
                    report.add(ends.size, "the stored edge of the tree is not the one that was signed", "log_edges")
            findings += report.findings
    return findings


async def check_registry(connection: AnyConnection) -> list[LogFinding]:
    """Find changes of the registry that are not in the tree, where the gate takes them from."""
    findings: list[LogFinding] = []
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        await prepare_reader(connection)
        for row in await connection.fetch(_CHANGES):
            findings += await _check_changes(connection, row["shard"], row["numbers"])
    return findings


async def _check_changes(connection: AnyConnection, shard: int, numbers: list[int]) -> list[LogFinding]:
    try:
        tiles = Tiles(connection, shard, await load_tree(connection, shard))
    except TreeBroken:
        return [LogFinding(shard, numbers[0], "the tree of the shard cannot be read", "log_edges")]
    findings = []
    for seq in numbers:
        leaves = await read_leaves(connection, shard, seq, seq)
        is_covered = 1 <= seq <= tiles.tree.size and leaves.hashes[0] == await _leaf(tiles, seq)
        if leaves.doubled or not is_covered:
            message = f"entry {seq} is a change of the registry that is not in the tree"
            findings.append(LogFinding(shard, seq, message, f"entry {seq}"))
    return findings


async def _leaf(tiles: Tiles, seq: int) -> bytes:
    at = (seq - 1) % TILE_WIDTH
    try:
        hashes = await tiles.hashes(0, (seq - 1) // TILE_WIDTH, at + 1)
    except TreeBroken:
        return b""
    return hashes[at * HASH_SIZE :]
