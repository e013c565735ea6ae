"""Write a run's OpenLineage events to a file of JSON lines, to standard output, or to a server."""

import asyncio
import sys
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import orjson

from apc_console.connections.database import open_log
from apc_console.errors import InputUnusable, ServiceAway
from apc_console.output.files import write_bytes
from apc_console.output.terminal import echo, standard_output
from apc_contracts.text import numbered
from apc_persister.openlineage import openlineage_events

ENDPOINT = "/api/v1/lineage"
PATIENCE_SECONDS = 5.0


async def export(run_id: str, out: Path | None, url: str | None) -> None:
    """Write or send the events of a run.

    Raises:
        InputUnusable: the log holds nothing of the run, or there are two places to send to.
        ServiceAway: the server does not take an event; those before it are there, and sending all again is harmless.
    """
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


def _send(address: str, event: bytes) -> None:
    request = urllib.request.Request(address, event, {"Content-Type": "application/json"}, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS):
            return
    except (OSError, urllib.error.URLError) as error:
        raise ServiceAway(f"{address} does not take an event: {error}") from error
