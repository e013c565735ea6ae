"""The keys, checkpoints, proofs and bundles that `apc log` prints and writes."""

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from uuid import UUID

from apc_bus.settings import LogKeySettings
from apc_console.commands.log.log_keys import TrustedKeys
from apc_console.commands.log.log_verification import read_exported
from apc_console.connections.database import open_log
from apc_console.errors import InputUnusable
from apc_console.output.output import opened, to_json
from apc_console.output.terminal import echo
from apc_contracts.contract.contract import packaged_contract_bytes
from apc_contracts.text import numbered
from apc_log.heads import read_epochs
from apc_persister.evidence.checkpoint import ensure_key, load_signer
from apc_persister.evidence.documents import (
    bundle_lines,
    find_packet,
    last_checkpoint,
    prove_consistency,
    prove_entry,
)

LONG_LOG = 200_000
"""Entries from which starting processes pays off."""
_ENTRY = re.compile(r"(\d{1,9})/(\d{1,16})")


def print_keys(*, create: bool) -> None:
    """Print the public key of every shard, after making the key. Raises LogKeyMissing, LogKeyUnusable."""
    settings = LogKeySettings()
    if create:
        ensure_key(settings)
    signer = load_signer(settings)
    for shard in range(settings.shards):
        echo(signer.public_key(shard))


async def print_checkpoints(shard: int | None) -> None:
    """Print the newest checkpoint of every shard, or of one, an empty line behind each."""
    async with open_log() as pool, pool.acquire() as connection:
        shards = [one for one in await read_epochs(connection) if shard in (None, one)]
        notes = [await last_checkpoint(connection, one) for one in shards]
    for note in notes:
        if note is not None:
            echo(note)


async def write_proof(what: str, session_id: str | None, out: Path | None, keys: Sequence[str]) -> None:
    """Write the proof of a packet, or of the entry `shard/seq`. Raises InputUnusable, ProofImpossible."""
    async with open_log() as pool, pool.acquire() as connection:
        number = _ENTRY.fullmatch(what)
        if number:
            shard, seq = int(number[1]), int(number[2])
        else:
            shard, seq = await find_packet(connection, _packet_id(what), session_id)
        _write_document(await prove_entry(connection, TrustedKeys(keys).of(shard), shard, seq), out)


async def write_consistency(shard: int, old: int, new: int, out: Path | None, keys: Sequence[str]) -> None:
    """Write the proof that a later log extends an earlier one. Raises ProofImpossible."""
    async with open_log() as pool, pool.acquire() as connection:
        _write_document(await prove_consistency(connection, TrustedKeys(keys).of(shard), shard, old, new), out)


async def write_bundle(run_id: str, out: Path | None, contracts: Sequence[Path]) -> None:
    """Write the bundle of a run line by line. Raises InputUnusable, ProofImpossible, TreeBroken, LogKeyMissing."""
    own = TrustedKeys(())
    outside = read_exported(own)
    given = [_read_bytes(path) for path in contracts] or [packaged_contract_bytes()]
    count = -2  # header and end
    async with open_log() as pool, pool.acquire() as connection:
        lines = bundle_lines(connection, run_id, own.signer, given, outside)
        first = await anext(lines)  # before the file is created
        with opened(out) as file:
            file.write(first + b"\n")
            count += 1
            async for line in lines:
                file.write(line + b"\n")
                count += 1
    echo(f"{out or 'bundle'}: {numbered(count, 'entry', 'entries')} of run {run_id}, with proofs", file=sys.stderr)


def _packet_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise InputUnusable(f"{text!r} is neither a packet id nor an entry as `shard/seq`") from None


def _write_document(document: Mapping[str, object], out: Path | None) -> None:
    with opened(out) as file:
        file.write(to_json(document) + b"\n")


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputUnusable(f"--contract {path}: {error.strerror}") from error
