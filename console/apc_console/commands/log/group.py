"""`apc log`: the evidence of the log: keys, checkpoints, verification, proofs, bundles."""

from pathlib import Path
from typing import Annotated

import typer

from apc_console.commands.log.openlineage_command import openlineage
from apc_console.output.output import AsJson
from apc_console.output.terminal import ask_whether

app = typer.Typer(help="Prove the log, and verify it.", no_args_is_help=True)
app.command()(openlineage)

KeyOption = Annotated[
    list[str] | None,
    typer.Option("--key", help="Public key, or a file of them (`apc log key`); default: of the log's own key."),
]
OutFile = Annotated[Path | None, typer.Option("--out", help="File to write; default: standard output.")]


@app.command()
def key(
    create: Annotated[bool, typer.Option("--create", help="Make the signing key first, unless there is one.")] = False,
) -> None:
    """Print the public key of each shard, which everybody who checks the log needs."""
    from apc_console.commands.log.evidence import print_keys

    print_keys(create=create)


@app.command()
def verify(
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
    uncovered: Annotated[
        bool, typer.Option("--uncovered", help="Print which columns are not covered, and exit.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Recompute the log from its rows; exit 1 and name every place that differs.

    Without checkpoints held outside the database, a log that was cut or rewritten with the signing key looks intact.
    """
    from apc_console.commands.log.log_verification import print_uncovered, verify_log
    from apc_console.system.running import run_quietly

    if uncovered:
        print_uncovered()
        return
    contracts = None if no_replay else contract or []
    verified = verify_log(first, checkpoints or [], keys or [], processes, contracts=contracts, as_json=as_json)
    if not run_quietly(verified):
        raise typer.Exit(1)


@app.command()
def checkpoint(
    shard: Annotated[int | None, typer.Option(min=0, help="Only this shard.")] = None,
) -> None:
    """Print the newest signed checkpoint of each shard, as exported: keep it outside the database."""
    from apc_console.commands.log.evidence import print_checkpoints
    from apc_console.system.running import run_quietly

    run_quietly(print_checkpoints(shard))


@app.command()
def prove(
    what: Annotated[str, typer.Argument(metavar="PACKET_ID|SHARD/SEQ", help="A packet, or any entry by its number.")],
    session_id: Annotated[str | None, typer.Option(help="The session, when several have the id.")] = None,
    out: OutFile = None,
    keys: KeyOption = None,
) -> None:
    """Write the proof that a packet is in the log: its entry, its bytes, the path to a signed checkpoint."""
    from apc_console.commands.log.evidence import write_proof
    from apc_console.system.running import run_quietly

    run_quietly(write_proof(what, session_id, out, keys or []))


@app.command()
def consistency(
    old: Annotated[int, typer.Argument(min=1, metavar="A", help="Entries of the earlier checkpoint.")],
    new: Annotated[int, typer.Argument(min=1, metavar="B", help="Entries of the later one.")],
    shard: Annotated[int, typer.Option(min=0, help="The shard.")] = 0,
    out: OutFile = None,
    keys: KeyOption = None,
) -> None:
    """Write the proof that the log of B entries extends the log of A entries."""
    from apc_console.commands.log.evidence import write_consistency
    from apc_console.system.running import run_quietly

    run_quietly(write_consistency(shard, old, new, out, keys or []))


@app.command()
def export(
    run_id: Annotated[str, typer.Option(help="The run.")],
    out: OutFile = None,
    contract: Annotated[
        list[Path] | None, typer.Option(help="File of a contract that the run was judged by; may be repeated.")
    ] = None,
) -> None:
    """Write one file with a whole run: packets, events, proofs, contract, public key. `apc log check` verifies it.

    The log is verified first, and its key signs the list of entries.
    """
    from apc_console.commands.log.evidence import write_bundle
    from apc_console.system.running import run_quietly

    run_quietly(write_bundle(run_id, out, contract or []))


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
    """Verify a proof or a bundle offline: no database, no network, no settings. Exit 1 when verification fails."""
    from apc_log.offline_verifier import main

    options = [part for key in keys or [] for part in ("--key", key)]
    raise typer.Exit(main([str(file), *options, *(["--no-key"] if no_key else [])]))


@app.command()
def rebuild(
    contract: Annotated[
        list[Path] | None, typer.Option(help="File of a contract that sessions were judged by; may be repeated.")
    ] = None,
) -> None:
    """Rebuild the projections beside the log from its entries: ids, counts, rulings, sessions, the tree's edge.

    Run it as a member of apc_owner, when projections were changed; `verify` names them.
    """
    from apc_console.commands.log.rebuilding import rebuild_beside_log
    from apc_console.system.running import run_quietly

    run_quietly(rebuild_beside_log(contract or []))


@app.command()
def erase(
    subject: Annotated[str, typer.Option(help="The subject, as packets name it (APC_SUBJECT_FIELD, or the sender).")],
    is_sure: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Destroy a subject's key: its texts in the log become permanently unreadable; every proof stays valid."""
    from apc_console.commands.log.erasure import erase_from_log
    from apc_console.system.running import run_quietly

    if not is_sure:
        ask_whether(f"Destroy the key of {subject!r} permanently?")
    run_quietly(erase_from_log(subject))
