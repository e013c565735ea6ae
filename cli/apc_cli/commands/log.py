"""`apc log`: the evidence of the log (keys, checkpoints, proofs, bundles), its exports, repair and erasure."""

import asyncio
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import orjson
import typer

from apc_bus.settings import ArchiveSettings, LogKeySettings
from apc_cli.commands.group import Commands, whole_packet_id, whole_run_id, whole_session_id
from apc_cli.commands.log_archive import add_to
from apc_cli.commands.log_verification import (
    TrustedKeys,
    archive_at,
    packet_id_of,
    print_uncovered,
    prove_from_archive,
    read_exported,
    say_uncovered,
    verify_archive,
    verify_log,
)
from apc_cli.connections import connect_databases, open_log, open_shard
from apc_cli.errors import InputUnusable, ServiceAway
from apc_cli.output.files import read_bytes, write_bytes
from apc_cli.output.output import AsJson, opened, to_json
from apc_cli.output.terminal import ask_whether, echo, standard_output
from apc_cli.system.running import run_quietly
from apc_contracts import load_contract
from apc_contracts.contract.contract import packaged_contract_bytes
from apc_contracts.text import numbered
from apc_log.errors import ArchiveUnavailable
from apc_log.heads import read_epochs
from apc_log.offline_verifier import main as verify_offline
from apc_persister.encryption import erase_subject
from apc_persister.evidence.checkpoint import ensure_key, load_signer
from apc_persister.evidence.documents import (
    bundle_lines,
    find_packet,
    last_checkpoint,
    prove_consistency,
    prove_entry,
)
from apc_persister.openlineage import openlineage_events
from apc_persister.rebuild import Rebuilt, rebuild_projections

_ENTRY = re.compile(r"(\d{1,9})/(\d{1,16})")


def _write_document(document: Mapping[str, object], out: Path | None) -> None:
    with opened(out) as file:
        file.write(to_json(document) + b"\n")


# `apc log erase`: destroy a subject's key, and say what that does not reach.


async def erase_from_log(subject: str) -> None:
    """Destroy a subject's key. Raises SubjectUnknown, and ServiceAway when the user lacks the rights."""
    async with open_log(is_home_alone=True) as pool, pool.acquire() as connection:
        done = await erase_subject(connection, subject)
    echo(f"destroyed {numbered(len(done.key_ids), 'key')}: {', '.join(map(str, done.key_ids))}")
    echo(
        "not reached: backups and WAL of the database, queues of the broker, artifacts, the agents' own state "
        "(docs/explanation/log-security.md)",
        file=sys.stderr,
    )
    if not done.is_swept:
        echo("run `VACUUM FULL apc_keys.subject_keys` as its owner: the key's bytes are in its file", file=sys.stderr)


# `apc log rebuild`: rebuild the projections, and print what was repaired.

_MOST_NAMED = 10
"""Sessions that cannot be replayed and are listed by name."""


# Write a run's OpenLineage events to a file of JSON lines, to standard output, or to a server.

ENDPOINT = "/api/v1/lineage"
PATIENCE_SECONDS = 5.0


def _send(address: str, event: bytes) -> None:
    request = urllib.request.Request(address, event, {"Content-Type": "application/json"}, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS):
            return
    except (OSError, urllib.error.URLError) as error:
        raise ServiceAway(f"{address} does not take an event: {error}") from error


# `apc log`: the evidence of the log: keys, checkpoints, verification, proofs, bundles.

app = Commands(help="Prove the log, and verify it.")

KeyOption = Annotated[
    list[str] | None,
    typer.Option("--key", help="Public key, or a file of them (`apc log key`); default: of the log's own key."),
]
add_to(app)
OutFile = Annotated[Path | None, typer.Option("--out", help="File to write; default: standard output.")]


@app.command()
async def openlineage(
    run_id: Annotated[str, typer.Option(help="The run.", parser=whole_run_id)],
    out: Annotated[Path | None, typer.Option(help="File of JSON lines; default: the standard output.")] = None,
    url: Annotated[str | None, typer.Option(help="Server to send to, such as http://localhost:5000.")] = None,
) -> None:
    """Write a run as OpenLineage events: agents are jobs, tasks their runs, artifacts the datasets."""
    if out is not None and url is not None:
        raise InputUnusable("--out and --url are two places: choose one")
    if url is not None and urlsplit(url).scheme not in ("http", "https"):
        raise InputUnusable(f"--url {url}: give the address of a server, such as http://localhost:5000")
    async with open_log() as pool:
        events = [orjson.dumps(event) async for event in openlineage_events(pool, run_id)]
    if not events:
        raise InputUnusable(f"the log holds no packet of run {run_id!r}")
    if url is not None:
        for event in events:
            await asyncio.to_thread(_send, f"{url.rstrip('/')}{ENDPOINT}", event)
        echo(f"{url}: {numbered(len(events), 'event')} of run {run_id}", file=sys.stderr)
        return
    lines = b"\n".join(events) + b"\n"
    if out is None:
        output = standard_output()
        output.write(lines)
        output.flush()
        return
    write_bytes(out, lines)
    echo(f"{out}: {numbered(len(events), 'event')} of run {run_id}", file=sys.stderr)


@app.command()
def key(
    create: Annotated[bool, typer.Option("--create", help="Make the signing key first, unless there is one.")] = False,
) -> None:
    """Print the public key of each shard, which everybody who checks the log needs."""
    settings = LogKeySettings()
    if create:
        ensure_key(settings)
    signer = load_signer(settings)
    for shard in range(settings.shards):
        echo(signer.public_key(shard))


@app.command()
async def verify(
    first: Annotated[
        int, typer.Option("--from", min=1, help="Begin at this entry; earlier ones are covered by the tiles.")
    ] = 1,
    checkpoints: Annotated[
        list[Path] | None,
        typer.Option(help="File or folder of exported checkpoints; may be repeated. Default: the export folder."),
    ] = None,
    keys: KeyOption = None,
    processes: Annotated[
        int | None,
        typer.Option(
            min=1, max=64, help="Processes that share the work; default: one for every two CPUs, if the log is long."
        ),
    ] = None,
    contract: Annotated[
        list[Path] | None, typer.Option(help="File of a contract that sessions were judged by; may be repeated.")
    ] = None,
    no_replay: Annotated[
        bool, typer.Option("--no-replay", help="Do not replay the sessions to compare their state.")
    ] = False,
    archive: Annotated[
        str | None,
        typer.Option(metavar="FOLDER|URL", help="Verify the archive there, from its objects alone; no database."),
    ] = None,
    uncovered: Annotated[
        bool, typer.Option("--uncovered", help="Print which columns are not covered, and exit.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Recompute the log from its rows; exit 1 and name every place that differs.

    Without checkpoints held outside the database, a log that was cut or rewritten with the signing key looks intact.
    """
    if uncovered:
        print_uncovered()
        return
    if archive is not None:
        if not await verify_archive(archive, checkpoints or [], keys or [], as_json=as_json):
            raise typer.Exit(1)
        return
    contracts = None if no_replay else contract or []
    is_whole = await verify_log(first, checkpoints or [], keys or [], processes, contracts=contracts, as_json=as_json)
    if not is_whole:
        raise typer.Exit(1)


@app.command()
async def checkpoint(
    shard: Annotated[int | None, typer.Option(min=0, help="Only this shard.")] = None,
) -> None:
    """Print the newest signed checkpoint of each shard, as exported: keep it outside the database."""
    async with open_log() as pool, pool.acquire() as connection:
        shards = [one for one in await read_epochs(connection) if shard in (None, one)]
        notes = [await last_checkpoint(connection, one) for one in shards]
    for note in notes:
        if note is not None:
            echo(note)


@app.command()
async def prove(
    what: Annotated[
        str,
        typer.Argument(
            metavar="PACKET_ID|SHARD/SEQ", help="A packet, or any entry by its number.", parser=whole_packet_id
        ),
    ],
    session_id: Annotated[
        str | None, typer.Option(help="The session, when several have the id.", parser=whole_session_id)
    ] = None,
    out: OutFile = None,
    keys: KeyOption = None,
    archive: Annotated[
        str | None, typer.Option(metavar="FOLDER|URL", help="Prove from the archive there; no database.")
    ] = None,
) -> None:
    """Write the proof that a packet is in the log: its entry, its bytes, the path to a signed checkpoint."""
    if archive is None:
        try:
            number = _ENTRY.fullmatch(what)
            if number:
                shard, seq = int(number[1]), int(number[2])
            else:
                async with open_log() as pool, pool.acquire() as connection:
                    shard, seq = await find_packet(connection, packet_id_of(what), session_id)
            async with open_shard(shard) as pool, pool.acquire() as connection:
                _write_document(await prove_entry(connection, TrustedKeys(keys or []).of(shard), shard, seq), out)
                return
        except ArchiveUnavailable:  # it was released from the database
            archive = ArchiveSettings().archive_url
            if archive is None:
                raise
    _write_document(await prove_from_archive(archive, what, keys or [], session_id), out)


@app.command()
async def consistency(
    old: Annotated[int, typer.Argument(min=1, metavar="A", help="Entries of the earlier checkpoint.")],
    new: Annotated[int, typer.Argument(min=1, metavar="B", help="Entries of the later one.")],
    shard: Annotated[int, typer.Option(min=0, help="The shard.")] = 0,
    out: OutFile = None,
    keys: KeyOption = None,
) -> None:
    """Write the proof that the log of B entries extends the log of A entries."""
    async with open_shard(shard) as pool, pool.acquire() as connection:
        _write_document(await prove_consistency(connection, TrustedKeys(keys or []).of(shard), shard, old, new), out)


@app.command()
async def export(
    run_id: Annotated[str, typer.Option(help="The run.", parser=whole_run_id)],
    out: OutFile = None,
    contract: Annotated[
        list[Path] | None, typer.Option(help="File of a contract that the run was judged by; may be repeated.")
    ] = None,
) -> None:
    """Write one file with a whole run: packets, events, proofs, contract, public key. `apc log check` verifies it.

    The log is verified first, and its key signs the list of entries. Tables beside the entries (ids, sessions, rulings,
    counts) are not in the file; where they do not fit, standard error says so.
    """
    own = TrustedKeys(())
    outside = read_exported(own)
    given = [read_bytes(path) for path in contract or []] or [packaged_contract_bytes()]
    count = -2  # header and end
    async with open_log() as pool, pool.acquire() as connection:
        settings = ArchiveSettings()
        place = settings.archive_url
        archive = None if place is None else archive_at(place, own.signer.public_key(0))
        lines = bundle_lines(connection, run_id, own.signer, given, outside, archive)
        first = await anext(lines)  # before the file is created
        with opened(out) as file:
            file.write(first + b"\n")
            count += 1
            async for line in lines:
                file.write(line + b"\n")
                count += 1
        await say_uncovered(connection, run_id, contract or [])
    echo(f"{out or 'bundle'}: {numbered(count, 'entry', 'entries')} of run {run_id}, with proofs", file=sys.stderr)


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="A file that `prove`, `consistency` or `export` wrote.")],
    keys: Annotated[
        list[str] | None, typer.Option("--key", help="Public key that you trust, or a file of them.")
    ] = None,
    no_key: Annotated[
        bool, typer.Option("--no-key", help="Without a key: only check that the file agrees with itself.")
    ] = False,
) -> None:
    """Verify a proof or a bundle offline: no database, no network, no settings. Exit 1 when verification fails.

    Exit 3: all that a bundle of version 2 can show holds; it cannot show that no shard was left out. Export it again.
    """
    options = [part for key in keys or [] for part in ("--key", key)]
    raise typer.Exit(verify_offline([str(file), *options, *(["--no-key"] if no_key else [])]))


@app.command()
async def rebuild(
    contract: Annotated[
        list[Path] | None, typer.Option(help="File of a contract that sessions were judged by; may be repeated.")
    ] = None,
) -> None:
    """Rebuild the projections beside the log from its entries: ids, counts, rulings, sessions, the tree's edge.

    Run it as a member of apc_owner, when projections were changed; `verify` names them.
    """
    available = [load_contract(), *map(load_contract, contract or [])]
    async with connect_databases() as databases:
        for name, connection in databases.items():
            if len(databases) > 1:
                echo(f"database {name}:")
            _tell_rebuilt(await rebuild_projections(connection, available))


def _tell_rebuilt(done: Rebuilt) -> None:
    echo(
        f"{numbered(done.shards, 'shard')}: {numbered(done.rows, 'row')} of counts rebuilt, "
        f"{numbered(done.edges, 'edge')} of the tree mended"
    )
    echo(
        f"{numbered(done.sessions.mended, 'session')} mended, "
        f"{numbered(done.packet_ids, 'packet id')} and {numbered(done.contracts, 'contract')} added"
    )
    left = done.sessions.left
    for sentence in left[:_MOST_NAMED]:
        echo(f"as it was: {sentence}", file=sys.stderr)
    if len(left) > _MOST_NAMED:
        echo(f"as they were: {numbered(len(left) - _MOST_NAMED, 'more session')}", file=sys.stderr)


@app.command()
def erase(
    subject: Annotated[str, typer.Option(help="The subject, as packets name it (APC_SUBJECT_FIELD, or the sender).")],
    is_sure: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Destroy a subject's key: its texts in the log become permanently unreadable; every proof stays valid."""
    if not is_sure:
        ask_whether(f"Destroy the key of {subject!r} permanently?")
    run_quietly(erase_from_log(subject))
