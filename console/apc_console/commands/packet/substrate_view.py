"""`apc packet substrate`: the packets that agents broadcast, from any offset of the stream."""

import asyncio
import sys
from typing import Any

import orjson

from apc_bus.port import Delivery, Subscription
from apc_bus.settings import BusSettings
from apc_console.connections.broker import open_bus
from apc_console.errors import InputUnusable
from apc_console.output.cells import show
from apc_console.output.terminal import echo
from apc_contracts.errors import PacketRefused
from apc_contracts.packet import Packet
from apc_contracts.text import one_line, printable_json
from apc_contracts.wire.parsing import parse_packet
from apc_contracts.wire.strict_json import read_strict_json

QUIET_SECONDS = 3.0
"""Seconds without a packet after which the stream counts as read to its end."""
_NAMED = ("first", "last", "next")


def offset_of(text: str) -> int | str:
    """Return where to begin: a number, `first`, `last` or `next`. Raises InputUnusable."""
    if text in _NAMED:
        return text
    if text.isascii() and text.isdecimal() and len(text) < 19:
        return int(text)
    raise InputUnusable(f"--from {one_line(text)!r}: write {', '.join(_NAMED)} or the number of an offset")


async def print_substrate(begin: int | str, *, limit: int | None, follow: bool, as_json: bool) -> None:
    """Print the packets of the substrate, oldest first.

    Args:
        begin: the first offset; `next` = what comes from now on.
        limit: most packets to print; None = all.
        follow: wait for more at the end of the stream.
        as_json: a line of JSON for each, as when the output is no terminal.

    Raises:
        InputUnusable: no broker is named.
        BusError: the broker is away, the stream is missing, or the user may not read it.
    """
    is_json = as_json or not sys.stdout.isatty()
    async with open_bus(BusSettings()) as bus, bus.read_substrate(begin) as stream:
        printed = 0
        while batch := await _next(stream, follow):
            for delivery in batch[: None if limit is None else limit - printed]:
                echo(_as_json(delivery) if is_json else _as_line(delivery), flush=True)
                printed += 1
            if limit is not None and printed >= limit:
                return
            await stream.ack(batch[-1], multiple=True)


async def _next(stream: Subscription, follow: bool) -> list[Delivery]:
    try:
        async with asyncio.timeout(None if follow else QUIET_SECONDS):
            return await stream.receive()
    except TimeoutError:
        return []


def _as_json(delivery: Delivery) -> str:
    message = delivery.message
    document = {"offset": delivery.offset, "packet_id": message.message_id, "packet": _document(message.body)}
    return printable_json(orjson.dumps(document).decode())


def _document(body: bytes) -> Any:
    """Return the packet as it was sent; None for a body that none can be, which only a foreign writer can leave."""
    try:
        return read_strict_json(body)
    except PacketRefused:
        return None


def _as_line(delivery: Delivery) -> str:
    try:
        packet: Packet = parse_packet(delivery.message.body)
    except PacketRefused as refused:
        return one_line(f"{delivery.offset}  unreadable: {refused}")
    said = show(packet.payload.model_dump(mode="json", exclude_none=True))
    return one_line(f"{delivery.offset}  {packet.packet_type}  {packet.sender.agent_id}  {packet.packet_id}  {said}")
