"""Receipts that ride on a packet, in a header: one message to the gate and one batch there, instead of two."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from apc_agents.metrics import ENDS
from apc_bus import headers
from apc_bus.port import Publication
from apc_contracts.wire.receipts import Receipt, encode_receipts

RIDING_RECEIPTS = 8
RIDING_BYTES = 4_096
"""Bounds of what rides on one packet. More of them cost the gate less in a separate message."""


class WaitingReceipt(NamedTuple):
    """A receipt of an outbox; `number` is its place among all that were added."""

    number: int
    due_at: float
    """Loop time at which it leaves, alone if need be; 0 = at once."""
    shard: int
    receipt: Receipt


class Settlement(NamedTuple):
    """A delivery that waits for the receipts up to a number, and its end: None = acknowledge it, else raise this."""

    after: int
    due_at: float
    done: asyncio.Future[None]
    error: Exception | None


class Riding(NamedTuple):
    """Receipts on their way with a packet, and the deliveries that end when the broker has confirmed it."""

    text: str
    """The value of the header."""
    receipts: list[WaitingReceipt]
    settlements: list[Settlement]

    def on(self, publication: Publication) -> Publication:
        """Return the packet with these receipts on it."""
        message = publication.message
        return replace(publication, message=replace(message, headers={**message.headers, headers.RECEIPTS: self.text}))


def riding(waiting: Sequence[WaitingReceipt], settlements: Sequence[Settlement], shard: int) -> Riding | None:
    """Return the ends among the waiting receipts, for a packet to this shard; None when they had better go alone.

    What waits for the end of its handler stays, and with it every delivery that was settled after it.
    """
    ends = [one for one in waiting if one.receipt.kind in ENDS]
    if not ends or any(one.shard != shard for one in ends):
        return None
    text = encode_receipts([one.receipt for one in ends]).decode()
    if len(text) > RIDING_BYTES:
        return None
    first_left = min((one.number for one in waiting if one.receipt.kind not in ENDS), default=None)
    ended = [one for one in settlements if first_left is None or one.after < first_left]
    return Riding(text, ends, ended)
