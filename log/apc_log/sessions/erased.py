"""How deliveries end whose packet was erased."""

from datetime import datetime

import asyncpg

from apc_contracts.contract.contract import Contract
from apc_contracts.session import Hop, Session
from apc_contracts.vocabulary import ORCHESTRATOR

ERASED = "erased"
"""Why a delivery ended whose packet cannot be read any more."""

_WAYS_OUT = {
    "SCHEMA_VALIDATED": ("ttl_expired", "EXPIRED"),
    "ROUTED": ("ttl_expired", "EXPIRED"),
    "APPLIED": ("verification_fail", "REJECTED_POLICY"),
    "DEAD_LETTERED": ("discarded", "ARCHIVED"),
}
"""Where a delivery can rest -> how it ends when there is nothing left to deliver or to verify."""


def end_of_erased(session: Session, row: asyncpg.Record, now: datetime, contract: Contract) -> list[Hop]:
    """Return how one recipient's delivery of an erased packet ends; nothing when it has come to rest."""
    packet_id, recipient, attempt, state = row["packet_id"], row["recipient"], row["attempt"] or 1, row["state"]
    if row["shared_state"] == "SCHEMA_VALIDATED":  # it waits as a whole
        if row["place"] > 1:
            return []
        recipient, attempt, state = "", 1, row["shared_state"]
    state = state or "ROUTED"
    is_open = row["ended_attempt"] != row["attempt"] and not row["is_local"]
    is_resting = state == "APPLIED" and session.identities[packet_id].packet_type in contract.superseding.types
    if state in _WAYS_OUT and not is_resting:
        event, after = _WAYS_OUT[state]
    elif is_open:
        event, after = "expired", ""
    else:
        return []
    metadata = {"ended": "expired", "error": ERASED}
    return [Hop(packet_id, recipient, attempt, state, after, [event], [now], ORCHESTRATOR, metadata)]
