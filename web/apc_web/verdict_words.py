"""Verdicts and dead letters in words."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from apc_contracts.judging.verdict import remedy_of
from apc_log.queries import PacketRow, TransitionRow
from apc_web.models import ApiModel, Shown


class VerdictWords(ApiModel):
    """The verdict and why."""

    verdict: Shown[str]
    code: Shown[str | None]
    rule: Shown[str | None]
    path: str | None
    """Place in the packet."""
    message: str | None
    """What the gate told the sender."""
    words: Shown[str]
    """What the verdict means, one sentence."""
    remedy: Shown[str | None]
    """What would have let it pass: the rule's own words, else those of the code."""
    requires: Shown[str | None]
    """Of a team's rule: its expression."""
    values: dict[str, Any] | None
    """Of a team's rule: what it read, by reading; some of it is content of the packet."""
    retry_after_ms: Shown[int | None]
    judged_at: Shown[datetime]
    contract_hash: Shown[str]


# The cause of each refusal code, as docs/reference/refusals.md has it; a test compares the two.

CAUSES: Mapping[str, str] = {
    "TOO_LARGE": (
        "the body is larger than 256 KiB, a SessionSpec has more than 256 swarms, or a list in the packet is "
        "too long (limits.list_items, limits.parents)"
    ),
    "TOO_DEEP": "more than 32 levels of nesting, or more than 20,000 nodes",
    "MALFORMED": "the body is not JSON in UTF-8, or contains NaN, NUL, a number out of range or a duplicate key; "
    "or the AMQP properties or a header cannot be read",
    "SCHEMA_INVALID": "a field is missing, unknown or of the wrong type; the path names it",
    "SENDER_MISMATCH": (
        "the AMQP user_id is missing or belongs to another agent, the sender claims to be orchestrator, or "
        "the message has CC or BCC headers"
    ),
    "UNKNOWN_SENDER": "the agent is not registered, or it was revoked",
    "BAD_SIGNATURE": "the contract requires a signature for this type and it is missing, or the signature is invalid",
    "DUPLICATE_CONFLICT": (
        "the packet_id is taken by other content, or a version 5 id cannot be recomputed from cause and ordinal"
    ),
    "EXPIRED": "the packet expired before the gate judged it",
    "CLOCK_SKEW": "created_at is more than 5 minutes in the future",
    "UNKNOWN_SESSION": "no such session in this shard",
    "UNKNOWN_CONTRACT": (
        "a START of apc/1.1 names a contract that the gate does not have, or one for another kind of session"
    ),
    "SESSION_TERMINAL": "the session is CLOSED or HALTED",
    "SESSION_PAUSED": "the session is paused and already holds 1,000 packets",
    "NOT_AUTHORIZED": (
        "role or swarm differ from the registration, the sender is no member of the session, or a right is missing"
    ),
    "UNROUTABLE": (
        "a recipient does not exist, is revoked or does not handle the type or the schema; or an ASK or a "
        "MULTICAST names the client of a run; or the recipient of a TRANSFER is not in to_swarm"
    ),
    "PHASE_MISMATCH": "run_phase is neither the session's nor the parent's",
    "GENERATION_MISMATCH": "trace.generation is above the session's, or a TRANSFER's differs from it",
    "PHASE_FORBIDS_TYPE": "the phase does not allow this packet type",
    "CONTENT_INVALID": "the schema is not registered, or the content does not fit it; the path names the place",
    "LINEAGE_REQUIRED": "the contract requires a lineage block for this type",
    "PROOF_REQUIRED": "the contract requires a proof bundle for this type",
    "TRANSFER_WINDOW_CLOSED": "the generation is in a closed window, or below min_generation",
    "THROTTLE_MODE": "the mode is not allowed in this phase",
    "THROTTLE_CROSS_USE_CASE": "cross-use-case transfer is not allowed in this window",
    "THROTTLE_SCORE": "the sender's score does not exceed the receiver's by the required factor",
    "THROTTLE_TOP_K": "top_k is missing or above the limit, or better transfers were selected at this barrier",
    "PROTOCOL_DECAYED": "the protocol, or an ancestor of it, is blocked",
    "NOT_RETRACTABLE": "the target is unknown, in another session, or already retracted",
    "DRIFT_CHECK_FAILED": "an anti-drift check in mode enforce failed; rule and message name it",
    "EVIDENCE_UNKNOWN": (
        "under rules of a team: the evidence names a packet that this session does not know, has refused or holds, or "
        "that was retracted; the path and the message name it"
    ),
    "RULE_FAILED": ("a rule of the team failed; rule names it, requires is its expression, and values is what it read"),
    "LOOP_DETECTED": "the sender repeated the same content too often, or answers added nothing new",
    "QUOTA_EXCEEDED": "the sender used up its packets per second; the NACK is DEFERRED",
    "OVERLOADED": (
        "too many deliveries are outstanding at a recipient, or the open packets of the session have too many"
        " bytes; the NACK is DEFERRED"
    ),
    "BUDGET_EXHAUSTED": (
        "the budget of the task or of the session is spent, a TASK_IR asks for more than is left, or the "
        "session has taken as many packets as a gate remembers (limits.session_items)"
    ),
}


# Verdicts in words. The long form of each code is docs/reference/refusals.md.

_HELD = "held: it is judged at the barrier of its generation, or when the session is resumed"
_ACCEPTED = "accepted: every rule of the contract let it pass"


def ruling_of(row: PacketRow, hops: Sequence[TransitionRow]) -> VerdictWords:
    """Return the verdict on a packet; of a held one the final verdict, when it has one."""
    verdict, refusal, at = row.verdict, row.refusal or {}, row.judged_at
    if verdict == "held":
        ruling = next((hop for hop in hops if hop.recipient == "" and hop.from_state == "SCHEMA_VALIDATED"), None)
        if ruling is not None:
            refusal = (ruling.metadata or {}).get("refusal") or {}
            verdict = "refused" if refusal or ruling.to_state == "REJECTED_POLICY" else "accepted"
            at = ruling.occurred_at
    code = _text(refusal, "code") or (row.refusal_code if verdict == "refused" else None)
    retry_after = refusal.get("retry_after_ms")
    return VerdictWords(
        verdict=verdict,
        code=code,
        rule=_text(refusal, "rule"),
        path=_text(refusal, "path"),
        message=_text(refusal, "message"),
        words=_words(verdict, code, CAUSES.get(code or "")),
        remedy=remedy_of(code, refusal=refusal) or None if code else None,
        requires=_text(refusal, "requires"),
        values=refusal.get("values"),
        retry_after_ms=retry_after if isinstance(retry_after, int) else None,
        judged_at=at,
        contract_hash=row.contract_hash.hex(),
    )


def _words(verdict: str, code: str | None, cause: str | None) -> str:
    if verdict == "accepted":
        return _ACCEPTED
    if verdict == "held":
        return _HELD
    return f"refused: {cause}" if cause else f"refused with {code}"


def _text(refusal: Mapping[str, Any], name: str) -> str | None:
    value = refusal.get(name)
    return value if isinstance(value, str) else None
