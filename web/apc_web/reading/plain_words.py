"""Verdicts and dead letters in words. The long form of each code is docs/reference/refusals.md."""

from collections.abc import Mapping, Sequence
from typing import Any

from apc_contracts.judging.remedies import remedy_of
from apc_log.queries import PacketRow, TransitionRow
from apc_web.models.packets import VerdictWords
from apc_web.reading.refusal_words import CAUSES

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
        remedy=remedy_of(code) or None if code else None,
        retry_after_ms=retry_after if isinstance(retry_after, int) else None,
        judged_at=at,
        contract_hash=row.contract_hash.hex(),
    )


def dead_words(reason: str | None) -> str:
    """Return why a delivery is dead, one sentence."""
    text = reason or ""
    for beginning, words in _DEAD.items():
        if text.startswith(beginning):
            rest = text[len(beginning) :].lstrip(" :")
            return f"{words}: {rest}" if rest else words
    return text or "the log does not say why"


_DEAD = {
    "handler_error": "the handler of the recipient failed",
    "delivery_limit": "the recipient died with it too often",
    "overflow": "the inbox of the recipient was full",
    "no_route": "the recipient has no inbox",
    "retry_limit": "the handler asked for too many further attempts",
}


def _words(verdict: str, code: str | None, cause: str | None) -> str:
    if verdict == "accepted":
        return _ACCEPTED
    if verdict == "held":
        return _HELD
    return f"refused: {cause}" if cause else f"refused with {code}"


def _text(refusal: Mapping[str, Any], name: str) -> str | None:
    value = refusal.get(name)
    return value if isinstance(value, str) else None
