"""`apc deploy`: prepare a deployment."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from apc_console.output.terminal import echo
from apc_contracts.text import numbered

app = typer.Typer(help="Prepare a deployment.", no_args_is_help=True)


@app.callback()
def _deploy() -> None:
    """Prepare a deployment."""


@app.command()
def init(
    compose: Annotated[
        list[Path] | None,
        typer.Option(
            "--compose",
            metavar="FILE",
            help="A compose file with secrets; repeat it. Default docker-compose.yml and docker-compose.override.yml.",
        ),
    ] = None,
) -> None:
    """Write the secrets that compose files name: random passwords and certificates. Keeps every file that exists.

    A folder without docker-compose.yml gets it first, with the files that it mounts.
    """
    from apc_console.commands.deploy.certificates import fingerprint
    from apc_console.commands.deploy.compose_files import files_of_folder, write_files
    from apc_console.commands.deploy.compose_secrets import write_secrets

    for file in [] if compose else write_files(Path()):
        echo(f"wrote {file}")
    written = write_secrets(compose or files_of_folder(Path()))
    for file in written.differing:
        echo(f"kept {file}: it differs from what the compose file says; remove it to write it again", file=sys.stderr)
    for file in written.missing:
        echo(
            f"missing {file}: the compose file does not say what it holds (x-content), so write it yourself",
            file=sys.stderr,
        )
    for file in written.certificates:
        echo(f"{file}: a browser warns of this certificate until you trust it; its SHA-256 is")
        echo(f"  {fingerprint(file.read_bytes())}")
    echo(
        f"{written.folder}: wrote {numbered(len(written.made), 'secret')}, kept {written.kept}; "
        f"passwords are in {written.passwords}"
    )
    echo("next: docker compose up --build --detach --wait")
    echo("then: docker compose logs --follow orchestrator persister")
