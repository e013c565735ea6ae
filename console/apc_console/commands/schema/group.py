"""`apc schema`: the schemas of MESSAGEs and results."""

from pathlib import Path
from typing import Annotated

import typer

from apc_console.output.output import AsJson, print_rows
from apc_console.output.terminal import echo

app = typer.Typer(help="Register, list and show the schemas of typed content.", no_args_is_help=True)

SchemaId = Annotated[str, typer.Argument(metavar="NAME/VERSION", help="The schema's name and version, like finding/1.")]


@app.command()
def register(
    schema_id: SchemaId, file: Annotated[Path, typer.Argument(help="A JSON Schema 2020-12; `-` is the standard input.")]
) -> None:
    """Register a schema; returns when every shard has it. The content of a version never changes.

    Refused are references out of the document, recursion that does not descend into the content, and patterns that
    need backtracking. After 10 s the command names the shards that have not confirmed and exits with 4; repeat it.
    """
    from apc_console.commands.schema.registration import register_file
    from apc_console.system.running import run_quietly

    schema = run_quietly(register_file(schema_id, file))
    echo(f"schema {schema.schema_id} is registered, sha256 {schema.hash.hex()}")


@app.command("list")
def list_schemas(as_json: AsJson = False) -> None:
    """List the registered schemas."""
    from apc_console.commands.schema.registration import schema_rows
    from apc_console.system.running import run_quietly

    print_rows(run_quietly(schema_rows()), title="Schemas", as_json=as_json, empty="no schema is registered")


@app.command()
def show(schema_id: SchemaId) -> None:
    """Print a registered schema as JSON."""
    from apc_console.commands.schema.registration import schema_text
    from apc_console.system.running import run_quietly

    echo(run_quietly(schema_text(schema_id)))
