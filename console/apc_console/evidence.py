"""What `apc log` prints and writes."""

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from uuid import UUID

from apc_bus.settings import LogKeySettings
from apc_console.database import open_log, open_log_with_url
from apc_console.errors import InputUnusable
from apc_console.output import opened, print_json, to_json
from apc_console.terminal import echo
from apc_contracts.contract import packaged_contract_bytes
from apc_persister.check import CheckFailed, Checkpoint, PublicKey, parse_key, parse_note, read_keys, split_notes
from apc_persister.evidence.checkpoint import Signer, ensure_key, key_file, load_signer
from apc_persister.evidence.chunks import check_note, start_helpers
from apc_persister.evidence.documents import (
    bundle_lines,
    find_packet,
    last_checkpoint,
    prove_consistency,
    prove_entry,
)
from apc_persister.evidence.verify import Report, verify_shard

_SHARDS = "SELECT shard FROM apc_log.shards ORDER BY shard"
_SIZES = """
SELECT shard, coalesce(tree_size, 0) FROM apc_log.shards LEFT JOIN apc_log.log_edges USING (shard) ORDER BY shard
"""
LONG_LOG = 200_000
"""Entries for which it is worth while to start processes: they verify fewer in the time that the start takes."""
_ENTRY = re.compile(r"(\d{1,9})/(\d{1,16})")


def print_keys(*, create: bool) -> None:
    """Print the public key of every shard. Raises LogKeyMissing, LogKeyUnusable."""
    settings = LogKeySettings()
    if create and ensure_key(settings):
        echo(f"made {key_file(settings)}: keep a copy, and keep it secret", file=sys.stderr)
    signer = load_signer(settings)
    for shard in range(settings.shards):
        echo(signer.public_key(shard))


async def print_checkpoints(shard: int | None) -> None:
    """Print the newest checkpoint of every shard, or of one, an empty line behind each."""
    async with open_log() as pool, pool.acquire() as connection:
        shards = [row[0] for row in await connection.fetch(_SHARDS) if shard in (None, row[0])]
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
        _write_document(await prove_entry(connection, _Keys(keys).of(shard), shard, seq), out)


async def write_consistency(shard: int, old: int, new: int, out: Path | None, keys: Sequence[str]) -> None:
    """Write the proof that a later log extends an earlier one. Raises ProofImpossible."""
    async with open_log() as pool, pool.acquire() as connection:
        _write_document(await prove_consistency(connection, _Keys(keys).of(shard), shard, old, new), out)


async def write_bundle(run_id: str, out: Path | None, contracts: Sequence[Path], keys: Sequence[str]) -> None:
    """Write the bundle of a run line by line. Raises InputUnusable, ProofImpossible."""
    given = [_read_bytes(path) for path in contracts] or [packaged_contract_bytes()]
    count = -2  # header and end
    async with open_log() as pool, pool.acquire() as connection:
        lines = bundle_lines(connection, run_id, _Keys(keys).of, given)
        first = await anext(lines)  # before the file is made
        with opened(out) as file:
            file.write(first + b"\n")
            count += 1
            async for line in lines:
                file.write(line + b"\n")
                count += 1
    echo(f"{out or 'bundle'}: {count} entries of run {run_id} with their proofs", file=sys.stderr)


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


async def verify_log(
    first: int, files: Sequence[Path], keys: Sequence[str], processes: int | None, *, as_json: bool
) -> bool:
    """Verify every shard; whether everything fits. Raises InputUnusable for a file that holds no checkpoints.

    A long log is shared out to `processes`; None = one for every two CPUs, since its backend
    in Postgres takes the other, and one for a short log.
    """
    trusted = _Keys(keys)
    reports: list[Report] = []
    async with open_log_with_url() as (pool, url), pool.acquire() as connection, AsyncExitStack() as stack:
        sizes: dict[int, int] = {row[0]: row[1] for row in await connection.fetch(_SIZES)}
        outside = _read_checkpoints(files, {shard: trusted.all_of(shard) for shard in sizes})
        left = {shard: max(0, size - first + 1) for shard, size in sizes.items()}
        if processes is None:
            processes = max(1, len(os.sched_getaffinity(0)) // 2) if sum(left.values()) >= LONG_LOG else 1
        helpers = await stack.enter_async_context(start_helpers(url, processes)) if processes > 1 else None
        for shard in sizes:
            key, *older = trusted.all_of(shard)
            with _progress(shard, left[shard], is_silent=as_json) as advance:
                report = await verify_shard(
                    connection,
                    shard,
                    key,
                    older=older,
                    first=first,
                    outside=outside.get(shard, ()),
                    progress=advance,
                    helpers=helpers,
                )
            reports.append(report)
    if as_json or not sys.stdout.isatty():
        print_json([_document(report) for report in reports])
    for report in reports:
        _say(report, is_compared=bool(files))
    return not any(report.findings for report in reports)


class _Keys:
    """Whom the reader trusts: the keys that were given, else the log's own."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._given = [key for text in texts for key in _read_key(text)]
        self._signer: Signer | None = None

    def of(self, shard: int) -> PublicKey:
        """The first that was given for a shard. Raises InputUnusable."""
        return self.all_of(shard)[0]

    def all_of(self, shard: int) -> list[PublicKey]:
        """All that were given for a shard: a log whose key was changed has several. Raises InputUnusable."""
        if self._given:
            found = [key for key in self._given if key.name.rpartition("/")[2] == str(shard)]
            if not found:
                raise InputUnusable(f"no key of shard {shard} was given with --key: take those of `apc log key`")
            return found
        if self._signer is None:
            self._signer = load_signer(LogKeySettings())
        return list(self._signer.trusted(shard))


def _read_key(text: str) -> list[PublicKey]:
    try:
        return [parse_key(text)] if text.count("+") >= 2 else read_keys(Path(text).read_text(encoding="utf-8"))
    except (CheckFailed, OSError, UnicodeError) as error:
        raise InputUnusable(f"--key {text}: {error}") from error


def _read_checkpoints(files: Sequence[Path], keys: Mapping[int, Sequence[PublicKey]]) -> dict[int, list[Checkpoint]]:
    """By shard. A note that is not signed by one of the keys proves nothing, so it is an error to offer it."""
    by_origin: dict[str, tuple[int, list[PublicKey]]] = {}
    for shard, several in keys.items():
        for key in several:
            by_origin.setdefault(key.name, (shard, []))[1].append(key)
    found: dict[int, list[Checkpoint]] = {}
    for file in _files_in(files):
        try:
            for text in split_notes(file.read_text(encoding="utf-8")):
                note = parse_note(text)
                if note.checkpoint.origin not in by_origin:
                    raise CheckFailed(f"a checkpoint of {note.checkpoint.origin!r}, which is no log of this database")
                shard, several = by_origin[note.checkpoint.origin]
                found.setdefault(shard, []).append(check_note(note, tuple(several)))
        except (CheckFailed, OSError, UnicodeError) as error:
            raise InputUnusable(f"{file}: {error}") from error
    if files and not found:
        raise InputUnusable(f"no checkpoints in {', '.join(map(str, files))}")
    return found


def _files_in(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            yield from sorted(one for one in path.rglob("*") if one.is_file())
        else:
            yield path


@contextmanager
def _progress(shard: int, total: int, *, is_silent: bool) -> Iterator[Callable[[int], None]]:
    if is_silent or not sys.stderr.isatty():
        yield lambda entries: None
        return
    from rich.progress import Progress

    from apc_console.safe_console import SafeConsole

    with Progress(console=SafeConsole(stderr=True), transient=True) as progress:
        task = progress.add_task(f"shard {shard}", total=total)
        yield lambda entries: progress.advance(task, entries)


def _document(report: Report) -> dict[str, object]:
    return {**asdict(report), "is_whole": not report.findings}


def _say(report: Report, *, is_compared: bool) -> None:
    """One line a shard on the standard error, where a person looks also when the output is piped."""
    if report.first is not None:
        echo(f"shard {report.shard}: NOT WHOLE, entry {report.first.seq}: {report.first.message}", file=sys.stderr)
        for finding in report.findings:
            if finding is not report.first:
                echo(f"shard {report.shard}: also {finding.message}", file=sys.stderr)
        return
    against = f"{report.outside} checkpoints held outside" if is_compared else "no checkpoint held outside"
    echo(
        f"shard {report.shard}: {report.size} entries fit tree and {report.checkpoints} stored checkpoints; "
        f"compared with {against}",
        file=sys.stderr,
    )
