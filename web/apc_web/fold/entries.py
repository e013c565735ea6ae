"""Entries of the log as the fold and the live feed have them."""

from collections.abc import Mapping
from typing import Any

import orjson

from apc_contracts.contract.contract import Contract
from apc_log.body_encryption import is_sealed
from apc_log.queries.packet_pages import EntryRow
from apc_web.models.timeline import FoldEntry


def fold_entry(row: EntryRow, contract: Contract) -> FoldEntry:
    """Return an entry of the log; what a sealed body would tell is left out."""
    payload = _payload(row.body)
    start = payload.get("session")
    phase = row.run_phase
    if row.kind == "coordination" and row.to_state is not None:
        of_state = contract.phase_of(row.to_state)
        phase = None if of_state is None else of_state.value
    return FoldEntry.model_construct(  # the database has checked the types
        shard=row.shard,
        seq=row.seq,
        kind=row.kind,
        session_id=row.session_id,
        run_id=row.run_id,
        at=row.at,
        packet_id=str(row.packet_id),
        packet_type=row.packet_type,
        sender=row.sender,
        recipients=row.recipients,
        recipient=row.recipient,
        verdict=row.verdict,
        refusal_code=row.refusal_code,
        run_phase=phase,
        round=row.round,
        generation=row.generation,
        step=row.step,
        cause_packet_id=None if row.cause_packet_id is None else str(row.cause_packet_id),
        parent_packet_id=None if row.parent_packet_id is None else str(row.parent_packet_id),
        event=row.event,
        from_state=row.from_state,
        to_state=row.to_state,
        attempt=row.attempt,
        usage=_usage(row.metadata or {}),
        start=_start(start) if isinstance(start, dict) else None,
        signal=payload.get("signal"),
    )


def _payload(body: bytes | None) -> Mapping[str, Any]:
    if body is None or is_sealed(body):
        return {}
    try:
        payload = orjson.loads(body)["payload"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return {}
    return payload if isinstance(payload, dict) and isinstance(payload.get("signal"), str) else {}


def _start(spec: Mapping[str, Any]) -> dict[str, object]:
    swarms = {one["swarm_id"]: list(one["agents"]) for one in spec.get("swarms", ())}
    return {"budgets": dict(spec.get("budgets") or {}), "swarms": swarms}


def _usage(metadata: Mapping[str, Any]) -> dict[str, float] | None:
    """Return the usage that was charged: what was reported without what was refused."""
    told, refused = metadata.get("usage"), metadata.get("usage_refused") or {}
    if not isinstance(told, dict):
        return None
    return {name: float(told[name]) - float(refused.get(name, 0)) for name in ("tokens", "cost") if name in told}
