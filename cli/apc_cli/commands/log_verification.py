"""`apc log verify`: recompute every shard, or its archive, and compare it with checkpoints held outside."""

import os
import re
import sys
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from uuid import UUID

import asyncpg
from rich.progress import Progress

from apc_bus.artifacts import local_folder
from apc_bus.settings import ArchiveSettings, DatabaseSettings, LogKeySettings, PersisterSettings
from apc_cli.connections import in_each_database
from apc_cli.errors import InputUnusable, LogKeyElsewhere
from apc_cli.output.output import print_json, wants_json
from apc_cli.output.safe_console import SafeConsole
from apc_cli.output.terminal import echo
from apc_contracts.contract.contract import Contract, load_contract
from apc_contracts.errors import ContractError
from apc_contracts.text import numbered
from apc_log.archive import BLOCK, Archive
from apc_log.cold import open_cold, prove_cold
from apc_log.cold_verification import ColdReport, verify_cold
from apc_log.heads import AnyConnection, read_tree_sizes
from apc_log.offline_verifier import CheckFailed, Checkpoint, PublicKey, keys_of, parse_note, split_notes
from apc_persister.database.several import read_away
from apc_persister.errors import LogKeyMissing
from apc_persister.evidence.checkpoint import Signer, load_signer
from apc_persister.evidence.export import folder_of, name_of
from apc_persister.evidence.rows import find_strays, list_shards
from apc_persister.verification.chunks import Helpers, check_note, start_helpers
from apc_persister.verification.derived import compare_derived
from apc_persister.verification.findings import UNCOVERED, LogFinding, Report
from apc_persister.verification.log_ends import compare_stayed
from apc_persister.verification.sessions import SessionComparison, compare_sessions
from apc_persister.verification.verify import verify_shard

# The keys whose checkpoints `apc log` trusts.


class TrustedKeys:
    """The trusted keys: those given by the user, else the log's own."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._given = [key for text in texts for key in _read_key(text)]
        self._signer: Signer | None = None

    @property
    def signer(self) -> Signer:
        """Return the log's own key. Raises LogKeyElsewhere, LogKeyUnusable."""
        if self._signer is None:
            try:
                self._signer = load_signer(LogKeySettings())
            except LogKeyMissing as missing:
                raise LogKeyElsewhere(missing.path) from missing
        return self._signer

    def of_origin(self, origin: str) -> tuple[int, tuple[PublicKey, ...]]:
        """Return the shard of a log, and the keys that may have signed its checkpoints.

        Raises CheckFailed when there is no such key.
        """
        shard = origin.rpartition("/")[2]
        if shard.isascii() and shard.isdigit() and len(shard) < 10:
            try:
                keys = tuple(key for key in self.all_of(int(shard)) if key.name == origin)
            except InputUnusable:
                keys = ()
            if keys:
                return int(shard), keys
        raise CheckFailed(f"a checkpoint of {origin!r}, of which no key is known: give it with --key")

    def of(self, shard: int) -> PublicKey:
        """Return the first that was given for a shard. Raises InputUnusable."""
        return self.all_of(shard)[0]

    @property
    def shards(self) -> list[int]:
        """The shards of which a key was given; all of the settings without any."""
        given = {int(key.name.rpartition("/")[2]) for key in self._given if key.name.rpartition("/")[2].isdigit()}
        return sorted(given) if self._given else list(range(LogKeySettings().shards))

    def all_of(self, shard: int) -> list[PublicKey]:
        """Return all that were given for a shard: a log whose key was changed has several. Raises InputUnusable."""
        if self._given:
            keys = [key for key in self._given if key.name.rpartition("/")[2] == str(shard)]
            if not keys:
                raise InputUnusable(f"no key of shard {shard} was given with --key: take those of `apc log key`")
            return keys
        return list(self.signer.trusted(shard))


def _read_key(text: str) -> list[PublicKey]:
    try:
        return keys_of(text)
    except CheckFailed as error:
        raise InputUnusable(f"--key {error}") from error


LONG_LOG = 200_000
"""Entries from which starting processes pays off."""

_MOST_UNPLAYED = 10
"""Sessions that cannot be replayed, and findings beside a bundle, that are listed one by one."""

ExportedCheckpoints = dict[int, list[Checkpoint]]
"""Shard -> its checkpoints held outside."""


def print_uncovered() -> None:
    """Print what is neither covered by the tree nor compared by the verification."""
    for place, what in UNCOVERED.items():
        echo(f"{place}\t{what}")


async def verify_log(
    first: int,
    files: Sequence[Path],
    keys: Sequence[str],
    processes: int | None,
    *,
    contracts: Sequence[Path] | None = (),
    as_json: bool,
) -> bool:
    """Verify every shard that the log or a checkpoint names; return whether everything matches.

    Without files the checkpoints come from the export folder. A long log is split among `processes`; None = one for
    every two CPUs, since its Postgres backend uses the other, and one for a short log. Sessions are replayed under the
    contracts that the log holds, the packaged one and those in `contracts`; None = they are not replayed.

    Raises:
        InputUnusable: a file without checkpoints, or with those of another log.
    """
    trusted = TrustedKeys(keys)
    outside = read_checkpoint_files(files, trusted) if files else read_exported(trusted)
    available = None if contracts is None else [load_contract(), *map(load_contract, contracts)]
    done = _Verified(trusted, outside, first, processes, available, as_json)
    away = await in_each_database(done.add)
    done.beside += [] if away else _misplaced(done.known, [report.shard for report in done.reports])
    reports = [*done.reports, *([Report(None, findings=done.beside)] if done.beside else [])]
    if wants_json(as_json):
        print_json([_document(report) for report in reports])
    for report in reports:
        _say(report, "checkpoints held outside" if done.outside else _nothing_exported())
    if away is not None:
        raise away
    if not reports:
        echo("the log is empty", file=sys.stderr)
    return not any(report.findings for report in reports)


@dataclass(slots=True)
class _Verified:
    """What was found in the databases that were verified, and what is asked of each."""

    trusted: TrustedKeys
    outside: ExportedCheckpoints
    first: int
    processes: int | None
    available: Sequence[Contract] | None
    is_silent: bool
    reports: list[Report] = field(default_factory=list)
    beside: list[LogFinding] = field(default_factory=list)
    known: set[int] = field(default_factory=set)
    """Shards that a database or a checkpoint names."""

    async def add(self, name: str, pool: asyncpg.Pool, url: str) -> None:
        """Verify the shards of a database, and what stands beside them."""
        has_others = bool(DatabaseSettings().other_urls)
        async with pool.acquire() as connection:
            sizes = await read_tree_sizes(connection)
            if not has_others:
                self.outside = await _of_this_database(connection, self.outside, sizes)
            named = {*await list_shards(connection), *self.outside}
            self.known |= named
            # By the guard: where home says that a shard is, log writers may write.
            shards = sorted(named - await read_away(connection, named) if has_others else named)
            left = {shard: max(0, sizes.get(shard, 0) - self.first + 1) for shard in shards}
            found = list[Report]()
            async with _helpers(url, self.processes, sum(left.values())) as helpers:
                for shard in shards:
                    with _progress(shard, left[shard], is_silent=self.is_silent) as advance:
                        given = (self.trusted, self.first, self.outside)
                        found.append(await _verify(connection, shard, *given, advance, helpers))
            await _compare_stayed(connection, found)
            self.reports += found
            self.beside += await _compare_beside(connection, self.available)


def _misplaced(known: Collection[int], verified: Sequence[int | None]) -> Iterator[LogFinding]:
    """Report shards that no database has, or several have, by their guards."""
    for shard in sorted(known):
        if verified.count(shard) != 1:
            said = "no database of APC_DATABASES has it" if shard not in verified else "several databases have it"
            yield LogFinding(shard, 1, f"{said}: `apc shard list` and `apc doctor` say more", "shards_here")


async def _of_this_database(
    connection: AnyConnection, outside: ExportedCheckpoints, sizes: Mapping[int, int]
) -> ExportedCheckpoints:
    """Leave out what another database has to prove: shards that are there, and what they have logged there since."""
    away = await read_away(connection, outside)
    if away:
        where = f"{numbered(len(away), 'shard')} with checkpoints, such as {min(away)}, in another database"
        echo(f"not compared here: {where}: verify it with its URL as APC_DATABASE_URL", file=sys.stderr)
    kept = {
        shard: held if shard not in away else [one for one in held if one.size <= sizes.get(shard, 0)]
        for shard, held in outside.items()
    }
    return {shard: held for shard, held in kept.items() if held or shard not in away}


async def _compare_beside(connection: AnyConnection, available: Sequence[Contract] | None) -> list[LogFinding]:
    """Compare what stands beside the entries of a database; sessions only with contracts to replay them under."""
    found = [*await find_strays(connection), *await compare_derived(connection)]
    if available is not None:
        sessions = await compare_sessions(connection, available)
        found += sessions.findings
        _say_unplayed(sessions)
    return found


@asynccontextmanager
async def _helpers(url: str, processes: int | None, entries: int) -> AsyncIterator[Helpers | None]:
    """Start the processes that verify a database's shards with this one; None = this one alone."""
    if processes is None:
        processes = max(1, len(os.sched_getaffinity(0)) // 2) if entries >= LONG_LOG else 1
    if processes == 1:
        yield None
        return
    async with start_helpers(url, processes) as helpers:
        yield helpers


async def _compare_stayed(connection: AnyConnection, reports: Sequence[Report]) -> None:
    """Compare what stays of released segments with the archive of the settings, if they name one."""
    settings, released = ArchiveSettings(), [report for report in reports if report.released]
    if released and settings.archive_url is not None:
        from apc_persister.archiving import ArchivedLeaves  # loads an object store

        archived = await ArchivedLeaves.open(connection, settings)
        for report in released:
            await compare_stayed(connection, report, archived.leaf)


async def verify_archive(location: str, files: Sequence[Path], keys: Sequence[str], *, as_json: bool) -> bool:
    """Verify the archive of every shard of which there is a key; return whether everything matches. No database.

    Args:
        location: folder or URL of the archive.
        files: checkpoints that were kept; without any, those of the export folder.
        keys: public keys; without any, the log's own.
        as_json: print a document.

    Raises:
        InputUnusable: a file without checkpoints, or with those of another log.
        ArchiveError: the archive cannot be used.
    """
    trusted = TrustedKeys(keys)
    kept = read_checkpoint_files(files, trusted) if files else read_exported(trusted)
    reports = []
    for shard in trusted.shards:
        key, *older = trusted.all_of(shard)
        archive = archive_at(location, key)
        with _progress(shard, _entries_of(await archive.segments(shard)), is_silent=as_json) as advance:
            held = kept.get(shard, ())
            reports.append(await verify_cold(archive, key, older=older, checkpoints=held, progress=advance))
    if wants_json(as_json):
        documents = [{**asdict(one), "root": one.root.hex(), "is_whole": not one.findings} for one in reports]
        print_json(documents)
    for report in reports:
        _say_cold(report)
    if not any(report.segments or report.findings for report in reports):
        raise InputUnusable(f"{location}: there is no segment of {', '.join(report.origin for report in reports)}")
    return not any(report.findings for report in reports)


def _entries_of(segments: Sequence[int]) -> int:
    """Return about how many entries segments have, by their first ones: the last one is as long as the one before."""
    return segments[-1] - segments[0] + (segments[-1] - segments[-2] if len(segments) > 1 else BLOCK) if segments else 0


def archive_at(location: str, key: PublicKey) -> Archive:
    """Return the archive at a folder or URL, of the log that a key signs. Raises ArchiveError."""
    settings = ArchiveSettings(archive_url=location)
    return Archive.open(settings, key.name.rpartition("/")[0])


def packet_id_of(text: str) -> UUID:
    """Return a packet's id. Raises InputUnusable."""
    try:
        return UUID(text)
    except ValueError:
        raise InputUnusable(f"{text!r} is neither a packet id nor an entry as `shard/seq`") from None


async def prove_from_archive(
    location: str, what: str, keys: Sequence[str], session_id: str | None
) -> dict[str, object]:
    """Return the proof of a packet by its id, or of an entry as `shard/seq`, from the archive alone.

    Raises:
        InputUnusable: it is neither, there is no archive, it has none, or several sessions have the packet.
        ArchiveError, CheckFailed: as `prove_cold`.
    """
    trusted = TrustedKeys(keys)
    folder = local_folder(location)
    if folder is not None and not folder.is_dir():
        raise InputUnusable(f"--archive {location}: there is no such folder")
    number = re.fullmatch(r"(\d{1,9})/(\d{1,16})", what)
    if number is not None:
        key = trusted.of(int(number[1]))
        return await prove_cold(archive_at(location, key), key, int(number[2]))
    packet_id = packet_id_of(what)
    found = []
    for shard in trusted.shards:
        archive = archive_at(location, trusted.of(shard))
        manifests = [await archive.read_manifest(shard, first) for first in await archive.segments(shard)]
        async with open_cold(archive, manifests) as cold:
            found += await cold.find_packet(packet_id)
    matching = [one for one in found if session_id in (None, one["session_id"])]
    if len(matching) != 1:
        raise InputUnusable(f"the archive holds {len(matching) or 'no'} packets {what}: name a session, or shard/seq")
    key = trusted.of(matching[0]["shard"])
    return await prove_cold(archive_at(location, key), key, matching[0]["seq"])


def _say_cold(report: ColdReport) -> None:
    for finding in report.findings:
        echo(f"{report.origin}: NOT WHOLE, {finding}", file=sys.stderr)
    if report.findings:
        return
    expired = f", {numbered(report.expired, 'segment')} expired" if report.expired else ""
    echo(
        f"{report.origin}: {numbered(report.size, 'entry', 'entries')} in {numbered(report.segments, 'segment')} fit "
        f"the tree{expired}; {numbered(report.compared, 'kept checkpoint')} compared, "
        f"proven up to entry {min(report.proven, report.size)}",
        file=sys.stderr,
    )
    if report.beyond:
        more = numbered(report.beyond, "kept checkpoint is", "kept checkpoints are")
        rest = "the rest stands in the database, or was taken out of the archive"
        echo(f"{report.origin}: {more} of more entries than are here: {rest}", file=sys.stderr)
    if not report.compared:
        danger = "the holder of the signing key could have made another log"
        echo(f"{report.origin}: no kept checkpoint was compared, so {danger}: give --checkpoints", file=sys.stderr)


async def say_uncovered(connection: AnyConnection, run_id: str, contracts: Sequence[Path]) -> None:
    """Say on standard error what does not fit beside the entries of a run: a bundle does not hold it.

    `contracts` are files of contracts that the log may lack.
    """
    available = [load_contract()]
    for path in contracts:
        with suppress(ContractError):  # its bytes are in the bundle all the same
            available.append(load_contract(path))
    sessions = await compare_sessions(connection, available, run_id=run_id)
    findings = [*await find_strays(connection), *await compare_derived(connection), *sessions.findings]
    for finding in findings[:_MOST_UNPLAYED]:
        echo(f"not in the bundle, and not what the entries say: {finding.message}", file=sys.stderr)
    if len(findings) > _MOST_UNPLAYED:
        more = numbered(len(findings) - _MOST_UNPLAYED, "more finding")
        echo(f"not in the bundle: {more}, which `apc log verify` names", file=sys.stderr)
    _say_unplayed(sessions)


async def _verify(
    connection: AnyConnection,
    shard: int,
    trusted: TrustedKeys,
    first: int,
    outside: ExportedCheckpoints,
    advance: Callable[[int], None],
    helpers: Helpers | None,
) -> Report:
    try:
        key, *older = trusted.all_of(shard)
    except InputUnusable as error:
        return Report(
            shard, findings=[LogFinding(shard, 1, f"there are rows of this shard: {error}", f"shard {shard}")]
        )
    held = outside.get(shard, ())
    return await verify_shard(
        connection, shard, key, older=older, first=first, outside=held, progress=advance, helpers=helpers
    )


def read_exported(trusted: TrustedKeys) -> ExportedCheckpoints:
    """Return the checkpoints in the export folder; none when they are exported elsewhere.

    Raises InputUnusable.
    """
    folder = folder_of(PersisterSettings().checkpoints_target)
    return {} if folder is None else read_checkpoint_files(sorted(folder.glob("shard-*.checkpoints")), trusted)


def read_checkpoint_files(files: Sequence[Path], trusted: TrustedKeys) -> ExportedCheckpoints:
    """Return the checkpoints of these files and folders.

    A checkpoint without a trusted signature proves nothing: it is an error, unless the file ends within it (it is being
    written, or was torn).

    Raises:
        InputUnusable: such a checkpoint, or none at all.
    """
    checkpoints: ExportedCheckpoints = {}
    for file in _files_in(files):
        try:
            text = file.read_text(encoding="utf-8")
            notes = list(split_notes(text))
            for place, note in enumerate(notes, 1):
                try:
                    parsed = parse_note(note)
                    shard, keys = trusted.of_origin(parsed.checkpoint.origin)
                    checkpoints.setdefault(shard, []).append(check_note(parsed, keys))
                except CheckFailed:
                    if place < len(notes) or text.endswith("\n\n"):
                        raise
        except OSError as error:
            raise InputUnusable(f"cannot read {file}: {error.strerror}") from error
        except (CheckFailed, UnicodeError) as error:
            raise InputUnusable(f"{file}: {error}") from error
    if files and not checkpoints:
        raise InputUnusable(f"no checkpoints in {', '.join(map(str, files))}")
    return checkpoints


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
    with Progress(console=SafeConsole(stderr=True), transient=True) as progress:
        task = progress.add_task(f"shard {shard}", total=total)
        yield lambda entries: progress.advance(task, entries)


def _of_released(report: Report) -> str:
    if not report.released:
        return ""
    released = f"; {numbered(report.released, 'entry was', 'entries were')} released"
    if report.stayed is None:
        return f"{released}, and what stays of them was not compared: set APC_ARCHIVE_URL"
    return f"{released}, {numbered(report.stayed, 'row stays and fits', 'rows stay and fit')} the archive"


def _document(report: Report) -> dict[str, object]:
    return {**asdict(report), "is_whole": not report.findings}


def _nothing_exported() -> str:
    target = PersisterSettings().checkpoints_target
    where = "" if folder_of(target) is not None else f" (they go to {name_of(target)}: fetch them, give --checkpoints)"
    return f"checkpoints held outside{where}"


def _say_unplayed(sessions: SessionComparison) -> None:
    for sentence in sessions.unplayed[:_MOST_UNPLAYED]:
        echo(f"not compared: {sentence}", file=sys.stderr)
    if len(sessions.unplayed) > _MOST_UNPLAYED:
        echo(f"not compared: {numbered(len(sessions.unplayed) - _MOST_UNPLAYED, 'more session')}", file=sys.stderr)


def _say(report: Report, against: str) -> None:
    """Print one line per shard on standard error, visible also when the output is piped."""
    name = "the log" if report.shard is None else f"shard {report.shard}"
    if report.first is not None:
        echo(f"{name}: NOT WHOLE, {report.first.place}: {report.first.message}", file=sys.stderr)
        for finding in report.findings:
            if finding is not report.first:
                echo(f"{name}: also {finding.place}: {finding.message}", file=sys.stderr)
        if report.unlisted:
            echo(f"{name}: and {numbered(report.unlisted, 'more finding')}", file=sys.stderr)
        return
    waiting = f"; {numbered(report.pending, 'more waits', 'more wait')} for the writer" if report.pending else ""
    waiting += _of_released(report)
    echo(
        f"{name}: {numbered(report.size, 'entry fits', 'entries fit')} tree and "
        f"{numbered(report.checkpoints, 'stored checkpoint')}; "
        f"compared with {report.outside or 'no'} {against}{waiting}",
        file=sys.stderr,
    )
