"""A receipt as pydantic reads it: the schema that is exported, and the refusal of what does not fit it.

`receipts` reads what our own senders write, in a fifth of the time.
"""

from typing import Annotated

from pydantic import Field

from apc_contracts.contract_model import Count, Id, Model, Time, Uuid
from apc_contracts.envelope.parts import MAX_TTL_MS
from apc_contracts.wire.receipt import Receipt, ReceiptKind, Usage


class UsageFields(Model):
    """What a handler spent; `cost` in the operator's unit."""

    tokens: Count | None = None
    cost: Annotated[float, Field(ge=0)] | None = None


class ReceiptFields(Model):
    """One event of one delivery. Each (packet_id, recipient, attempt, kind) counts once, usage included."""

    packet_id: Uuid
    session_id: Id
    recipient: Id
    kind: ReceiptKind
    attempt: Annotated[int, Field(ge=1)]
    usage: UsageFields | None = None
    at: Time
    error: str | None = None
    after_ms: Annotated[int, Field(ge=0, le=MAX_TTL_MS)] | None = None
    """For a `retry`: the delay of the next attempt; 0 and None = the contract's back-off."""
    delivered_at: Time | None = None
    """When a handler got the packet, if no `delivery_ack` said so."""
    applied_at: Time | None = None
    """When the handler was done, if no `consumer_apply` said so."""
    by: Id | None = None
    """For a `requeue` and a `discard`: who acts, through a broker user that speaks for them; None = the user itself."""

    def receipt(self) -> Receipt:
        """Return the receipt."""
        usage = None if self.usage is None else Usage(tokens=self.usage.tokens, cost=self.usage.cost)
        return Receipt(**{**dict(self), "usage": usage})
