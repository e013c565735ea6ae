"""The files that `apc_log.offline_verifier` verifies: proofs of inclusion and of consistency, and the bundle of a run.

docs/reference/log-format.md holds the formats.
"""

import base64
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any
from uuid import UUID

import orjson

from apc_log.archive import BLOCK, Archive, Manifest
from apc_log.cold import ColdLog
from apc_log.heads import AnyConnection, LogRange, Reach, released_in, require_here, unavailable
from apc_log.merkle import HASH_SIZE, TILE_WIDTH
from apc_log.offline_verifier import (
    BUNDLE,
    CONSISTENCY,
    PROOF,
    VERSIONS,
    CheckFailed,
    Checkpoint,
    PublicKey,
    leaf_hash,
    parse_note,
    root_by_inclusion,
)
from apc_log.thawing import open_gone
from apc_persister.errors import ProofImpossible, TreeBroken
from apc_persister.evidence.checkpoint import Signer
from apc_persister.evidence.rows import prepare_reader, read_entries
from apc_persister.evidence.tree import Tiles, consistency_path, inclusion_path
from apc_persister.verification.verify import verify_shard

ExportedCheckpoints = Mapping[int, Sequence[Checkpoint]]
"""Shard -> checkpoints that are held outside."""
_CHUNK = 4096

_NOTE = "SELECT note FROM apc_log.log_checkpoints WHERE shard = $1 AND tree_size = $2"
_LAST_NOTE = "SELECT note FROM apc_log.log_checkpoints WHERE shard = $1 ORDER BY tree_size DESC LIMIT 1"
_PLACES = "SELECT session_id, shard, seq FROM apc_log.packet_ids WHERE packet_id = $1 ORDER BY session_id"
_OF_A_RUN = """
WITH here AS MATERIALIZED (
    SELECT shard, seq, session_id, packet_id FROM apc_log.agent_packets WHERE run_id = $1
), packets AS MATERIALIZED (
    SELECT session_id, packet_id FROM here UNION SELECT * FROM unnest($2::text[], $3::uuid[]) -- what is archived
), sessions AS MATERIALIZED (
    SELECT DISTINCT session_id FROM packets
)
SELECT shard, seq FROM here
UNION ALL SELECT event.shard, event.seq FROM packets JOIN apc_log.packet_events AS event USING (session_id, packet_id)
UNION ALL SELECT block.shard, block.seq FROM packets JOIN apc_log.packet_lineage AS block USING (session_id, packet_id)
UNION ALL SELECT move.shard, move.seq FROM sessions JOIN apc_log.coordination_events AS move USING (session_id)
UNION ALL SELECT conflict.shard, conflict.seq FROM sessions JOIN apc_log.packet_conflicts AS conflict USING (session_id)
ORDER BY shard, seq
"""
_CONTRACTS = """
SELECT named.contract_hash, contracts.document
FROM (
    SELECT contract_hash FROM apc_log.agent_packets WHERE run_id = $1 UNION SELECT unnest($2::bytea[])
) AS named
LEFT JOIN apc_log.contracts USING (contract_hash) ORDER BY named.contract_hash
"""


async def last_checkpoint(connection: AnyConnection, shard: int) -> str | None:
    """Return the newest signed checkpoint of a shard, None before the first entry."""
    note: str | None = await connection.fetchval(_LAST_NOTE, shard)
    return note


async def find_packet(connection: AnyConnection, packet_id: UUID, session_id: str | None = None) -> tuple[int, int]:
    """Return shard and seq of a packet.

    Raises:
        ProofImpossible: the log has none, or several sessions have one.
        ArchiveUnavailable: it may have been released from the database.
    """
    await require_here(connection, Reach(packets=[packet_id]))
    rows = await connection.fetch(_PLACES, packet_id)
    matching = [row for row in rows if session_id in (None, row["session_id"])]
    if not matching:
        raise ProofImpossible(f"the log holds no packet {packet_id}")
    if len(matching) > 1:
        sessions = ", ".join(row["session_id"] for row in matching)
        raise ProofImpossible(f"packet {packet_id} is in several sessions, name one: {sessions}")
    return matching[0]["shard"], matching[0]["seq"]


async def prove_entry(connection: AnyConnection, key: PublicKey, shard: int, seq: int) -> dict[str, Any]:
    """Prove that entry `seq` is in the log of a shard as its newest checkpoint tells it, with a packet's bytes.

    Raises:
        ProofImpossible: no such entry, or not in the tree yet.
        TreeBroken: tiles are missing.
        ArchiveUnavailable: it was released from the database: `prove_cold` proves it from the archive.
    """
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        await require_here(connection, Reach(ranges=[LogRange(shard, seq, seq)]))
        tiles = await Tiles.open(connection, shard)
        await prepare_reader(connection)
        head = await _head(connection, tiles.tree.size, key, shard)
        async for item in _items(connection, tiles, [seq], head["checkpoint"]):
            return {"format": PROOF, "version": VERSIONS[PROOF], **head, **item}
    raise ProofImpossible(f"shard {shard} has no entry {seq}")


async def prove_consistency(
    connection: AnyConnection, key: PublicKey, shard: int, old: int, new: int
) -> dict[str, Any]:
    """Return the proof that the log of a shard with `new` entries extends the one with `old`.

    Raises:
        ProofImpossible: a size of which there is no checkpoint, or `old` is the larger.
        TreeBroken: tiles are missing.
    """
    if not 0 < old <= new:
        raise ProofImpossible(f"a log of {new} entries cannot extend one of {old}")
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        heads = {
            name: (await _head(connection, size, key, shard))["checkpoint"]
            for name, size in (("old", old), ("new", new))
        }
        path = await consistency_path(await Tiles.open(connection, shard), old, new)
    return {
        "format": CONSISTENCY,
        "version": VERSIONS[CONSISTENCY],
        "key": str(key),
        **heads,
        "path": [step.hex() for step in path],
    }


async def bundle_lines(
    connection: AnyConnection,
    run_id: str,
    signer: Signer,
    contracts: Sequence[bytes],
    outside: ExportedCheckpoints | None = None,
    archive: Archive | None = None,
) -> AsyncIterator[bytes]:
    """Yield the lines of the bundle of a run, as they are read: header, entries, end.

    The logs of the run's shards are verified first: a bundle says that it holds all of the run. `contracts` are the
    bytes of contract files that the log may lack: those of before it kept them. What was released from the database is
    read from `archive`.

    Raises:
        ProofImpossible: no such run, a contract of the run is not among those given or was changed in the database, an
            entry is not in the tree yet.
        TreeBroken: the log of a shard does not verify.
        ArchiveUnavailable, ArchiveDiffers: some of the run was released from the database, and cannot be read.
    """
    async with (
        connection.transaction(isolation="repeatable_read", readonly=True),
        _archived(connection, run_id, archive) as archived,
    ):
        await prepare_reader(connection)
        places = await _places(connection, run_id, archived)
        for shard in sorted(places):
            await _verify(connection, shard, signer, () if outside is None else outside.get(shard, ()))
        tiles = {shard: await Tiles.open(connection, shard) for shard in places}
        for one in tiles.values():
            one.archived = archived.tile
        heads = await _heads(connection, run_id, signer, places, tiles)
        yield orjson.dumps(
            {
                "format": BUNDLE,
                "version": VERSIONS[BUNDLE],
                "run_id": run_id,
                "checkpoints": list(heads.values()),
                "contracts": await _contracts(connection, run_id, contracts, archived.contracts),
            }
        )
        count = 0
        for shard, numbers in sorted(places.items()):
            async for item in _items(connection, tiles[shard], numbers, heads[shard]["checkpoint"], archived):
                yield orjson.dumps({"origin": signer.public_key(shard).name, **item})
                count += 1
        yield orjson.dumps({"entries": count})


async def _heads(
    connection: AnyConnection, run_id: str, signer: Signer, places: Mapping[int, list[int]], tiles: Mapping[int, Tiles]
) -> dict[int, Mapping[str, str]]:
    """Return the head of each shard of a run, with what the log's key signs of its contents."""
    heads: dict[int, Mapping[str, str]] = {}
    for shard, numbers in sorted(places.items()):
        size = tiles[shard].tree.size
        head = await _head(connection, size, signer.public_key(shard), shard)
        heads[shard] = {**head, "contents": signer.sign_contents(shard, size, run_id, places, _ranges(numbers))}
    return heads


@dataclass(slots=True)
class _Archived:
    """What of a run is read from the archive."""

    archive: Archive | None = None
    cold: ColdLog | None = None
    manifests: Sequence[Manifest] = ()
    packets: tuple[list[str], list[UUID]] = field(default_factory=lambda: ([], []))
    """Sessions and ids."""
    places: set[tuple[int, int]] = field(default_factory=set)
    contracts: set[bytes] = field(default_factory=set)

    async def find(self, run_id: str) -> None:
        """Look for the entries of the run."""
        assert self.cold is not None
        packets = await self.cold.packets(run_id=run_id, limit=1 << 40)
        named = [(one["session_id"], one["packet_id"]) for one in packets]
        sessions = {session for session, _ in named}
        self.packets = [session for session, _ in named], [packet for _, packet in named]
        self.contracts = {one["contract_hash"] for one in packets}
        found = [packets, await self.cold.hops(packets=named), await self.cold.lineage(named)]
        found += [await self.cold.moves(sessions), await self.cold.conflicts(session_ids=sessions)]
        self.places = {(one["shard"], one["seq"]) for records in found for one in records}

    async def entries(self, shard: int, numbers: Sequence[int]) -> dict[int, tuple[bytes, bytes | None]]:
        """Return those of these entries that are archived."""
        own = [one for one in self.manifests if one.shard == shard]
        wanted = [seq for seq in numbers if any(one.first <= seq <= one.last for one in own)]
        if self.cold is None or not wanted:
            return {}
        return {seq: (text, raw) for seq, text, raw in await self.cold.entries(shard, wanted)}

    async def tile(self, shard: int, index: int) -> bytes:
        """Return a full tile of leaves; nothing where it is not archived."""
        first = index * TILE_WIDTH + 1
        for one in self.manifests:
            if self.archive is not None and one.shard == shard and one.first <= first <= one.last:
                block, at = divmod(first - one.first, BLOCK)
                leaves = await self.archive.read_block(one, block)
                return leaves[at * HASH_SIZE : (at + TILE_WIDTH) * HASH_SIZE]
        return b""


async def _places(connection: AnyConnection, run_id: str, archived: _Archived) -> dict[int, list[int]]:
    """Return the entries of a run by shard, in order: those of the database and of the archive."""
    places: dict[int, list[int]] = {}
    here = await connection.fetch(_OF_A_RUN, run_id, *archived.packets)
    for shard, seq in sorted({*archived.places, *((row["shard"], row["seq"]) for row in here)}):
        places.setdefault(shard, []).append(seq)
    if not places:
        raise ProofImpossible(f"the log holds no packet of run {run_id!r}")
    return places


@asynccontextmanager
async def _archived(connection: AnyConnection, run_id: str, archive: Archive | None) -> AsyncIterator[_Archived]:
    """Open every released segment of a run, also where its rows have stayed: the leaves beside them have not."""
    here = await connection.fetch(_OF_A_RUN, run_id, [], [])
    blocks = {(row["shard"], (row["seq"] - 1) // BLOCK * BLOCK) for row in here}
    stayed = Reach(ranges=[LogRange(shard, before + 1, before + BLOCK) for shard, before in sorted(blocks)])
    gone = list(
        dict.fromkeys([*await released_in(connection, Reach(runs=[run_id])), *await released_in(connection, stayed)])
    )
    if not gone:
        yield _Archived()
        return
    if archive is None:
        raise await unavailable(connection, gone[0])
    async with open_gone(archive, gone) as cold:
        found = _Archived(archive, cold, cold.manifests)
        await found.find(run_id)
        yield found


async def _verify(connection: AnyConnection, shard: int, signer: Signer, outside: Sequence[Checkpoint]) -> None:
    key, *older = signer.trusted(shard)
    report = await verify_shard(connection, shard, key, older=older, outside=outside)
    if report.first is not None:
        raise TreeBroken(shard, f"nothing is exported of it: {report.first.place}: {report.first.message}")


def _ranges(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return ascending numbers as (first, last) of each run without a gap."""
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ranges


async def _contracts(
    connection: AnyConnection, run_id: str, given: Sequence[bytes], archived: Collection[bytes]
) -> list[str]:
    known = {sha256(body).digest(): body for body in given}
    bodies = []
    for contract_hash, document in await connection.fetch(_CONTRACTS, run_id, list(archived)):
        if document is not None and sha256(document).digest() != contract_hash:
            raise ProofImpossible(
                f"the bytes of contract {contract_hash.hex()} in table contracts do not have this hash, so nothing is "
                "exported of the run: restore the row, and `apc log verify` shows whether the rest fits"
            )
        body = document or known.get(contract_hash)
        if body is None:
            raise ProofImpossible(
                f"run {run_id!r} was judged by the contract with SHA-256 {contract_hash.hex()}: give its file"
            )
        bodies.append(body.decode())
    return bodies


async def _head(connection: AnyConnection, size: int, key: PublicKey, shard: int) -> Mapping[str, str]:
    note = await connection.fetchval(_NOTE, shard, size)
    if note is None:
        raise ProofImpossible(f"there is no checkpoint of {size} entries of shard {shard}")
    try:
        parse_note(note).check(key)
    except CheckFailed as error:
        raise ProofImpossible(f"the newest checkpoint of shard {shard}: {error}") from error
    return {"checkpoint": note, "key": str(key)}


async def _items(
    connection: AnyConnection,
    tiles: Tiles,
    numbers: Sequence[int],
    note: str,
    archived: "_Archived | None" = None,
) -> AsyncIterator[dict[str, Any]]:
    """Yield entry, path, and a packet's bytes, by ascending number; each is compared with the signed checkpoint."""
    head = parse_note(note).checkpoint
    for start in range(0, len(numbers), _CHUNK):
        chunk = numbers[start : start + _CHUNK]
        try:
            entries = {seq: (text, raw) async for seq, text, raw in read_entries(connection, tiles.shard, chunk)}
        except (ValueError, TypeError, LookupError) as error:
            raise TreeBroken(tiles.shard, f"an entry from {chunk[0]} to {chunk[-1]} cannot be read") from error
        if archived is not None:
            entries |= await archived.entries(tiles.shard, chunk)
        for seq in chunk:
            if seq not in entries:
                raise ProofImpossible(f"shard {tiles.shard} has no entry {seq}")
            if seq > head.size:
                raise ProofImpossible(
                    f"entry {seq} of shard {tiles.shard} is not in the tree yet: start the log writer"
                )
            text, raw = entries[seq]
            path = await inclusion_path(tiles, seq - 1, head.size)
            _check_path(tiles.shard, seq, head, text, path)
            item: dict[str, Any] = {"entry": text.decode(), "path": [step.hex() for step in path]}
            if raw is not None and text.startswith(b'["packet"'):
                item["body"] = base64.b64encode(raw).decode()
            yield item


def _check_path(shard: int, seq: int, head: Checkpoint, text: bytes, path: Sequence[bytes]) -> None:
    try:
        root = root_by_inclusion(seq - 1, head.size, leaf_hash(text), path)
    except CheckFailed as error:
        raise TreeBroken(shard, f"entry {seq} cannot be proven: {error}") from error
    if root != head.root:
        raise TreeBroken(shard, f"entry {seq} does not fit the signed checkpoint of {head.size} entries")
