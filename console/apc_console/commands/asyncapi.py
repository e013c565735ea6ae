"""`apc asyncapi`: the bus as an AsyncAPI 3.0 document."""

from pathlib import Path
from typing import Annotated

import typer


def asyncapi(out: Annotated[Path, typer.Option(help="The file; - is standard output.")] = Path("-")) -> None:
    """Write the AsyncAPI 3.0 document: APC_SHARDS shards, and the registered agents when APC_DATABASE_URL is set."""
    from apc_bus.settings import BusSettings
    from apc_console.asyncapi import asyncapi_document
    from apc_console.connections import planned_topology
    from apc_console.output.files import write_output
    from apc_console.output.output import to_json
    from apc_console.system.running import run_quietly

    document = asyncapi_document(run_quietly(planned_topology()), BusSettings().amqp_nodes)
    write_output(out, to_json(document) + b"\n")
