"""`apc schema`: the schemas of MESSAGEs and results: register one, and read those of the registry."""

from pathlib import Path
from typing import Annotated

import orjson
import typer

from apc_bus.settings import BusSettings
from apc_cli.commands.group import Commands
from apc_cli.connections import open_bus, open_log
from apc_cli.errors import InputUnusable
from apc_cli.output.files import read_bytes
from apc_cli.output.output import AsJson, print_rows
from apc_cli.output.terminal import echo
from apc_contracts.errors import PacketRefused
from apc_contracts.schemas import MAX_SCHEMA_BYTES
from apc_contracts.wire.strict_json import read_strict_json
from apc_log.registry import read_schemas

app = Commands(help="Register, list and show the schemas of typed content.")

SchemaId = Annotated[str, typer.Argument(metavar="NAME/VERSION", help="The schema's name and version, like finding/1.")]


@app.command()
async def register(
    schema_id: SchemaId, file: Annotated[Path, typer.Argument(help="A JSON Schema 2020-12; `-` is the standard input.")]
) -> None:
    """Register a schema; returns when every shard has it. The content of a version never changes.

    Refused are references out of the document, recursion that does not descend into the content, and patterns that
    need backtracking. After 10 s the command names the shards that have not confirmed and exits with 4; repeat it.
    """
    from apc_client.registration import register_schemas, usable_schema  # they bring the whole system along

    try:
        document = read_strict_json(read_bytes(file))
    except PacketRefused as error:
        is_large = error.code == "TOO_LARGE"
        said = f"larger than {MAX_SCHEMA_BYTES} bytes: split the message" if is_large else error.message
        raise InputUnusable(f"{file}: {said}") from error
    usable_schema(schema_id, document)
    settings = BusSettings()
    async with open_log() as pool, open_bus(settings) as bus:
        (schema,) = await register_schemas(bus, pool, settings.shards, {schema_id: document})
    echo(f"schema {schema.schema_id} is registered, sha256 {schema.hash.hex()}")


@app.command("list")
async def list_schemas(as_json: AsJson = False) -> None:
    """List the registered schemas."""
    async with open_log() as pool:
        schemas = await read_schemas(pool)
    rows = [
        {"schema": one.schema_id, "title": one.document.get("title"), "sha256": one.hash.hex()}
        for _, one in sorted(schemas.items())
    ]
    print_rows(rows, title="Schemas", as_json=as_json, empty="no schema is registered", weight=("schema", "title"))


@app.command()
async def show(schema_id: SchemaId) -> None:
    """Print a registered schema as JSON."""
    async with open_log() as pool:
        schema = (await read_schemas(pool)).get(schema_id)
    if schema is None:
        raise InputUnusable(f"there is no schema {schema_id}: `apc schema list` shows those that are registered")
    echo(orjson.dumps(schema.document, option=orjson.OPT_INDENT_2).decode())
