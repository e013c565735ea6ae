"""The gate's verdict on a packet."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec


class VerdictKind(StrEnum):
    """The outcome of judging one input."""

    ACCEPTED = "accepted"
    HELD = "held"
    """Logged now, judged later: a TRANSFER before its barrier, a packet of a paused session."""
    REFUSED = "refused"
    REPEAT = "repeat"
    """The same packet again: not judged twice."""
    RERUN = "rerun"
    """The same sender and cause with another payload: the first stands; recorded, no NACK."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a packet is refused: `code` from the contract's refusal order, `path` dotted with [i], `$` the whole."""

    code: str
    rule: str
    path: str
    message: str
    retry_after_ms: int | None = None
    requires: str | None = None
    """Of a team's rule: its expression."""
    values: Mapping[str, Any] | None = None
    """Of a team's rule: what it read, by reading."""
    remedy: str | None = None
    """The rule's own; None = `remedy_of` its code."""

    @property
    def reason(self) -> str:
        """The NACK's reason: `CODE at PATH: message`."""
        return f"{self.code} at {self.path}: {self.message}"

    @property
    def document(self) -> dict[str, Any]:
        """The JSON form for the log and the NACK's metadata: {code, rule, path, message}, and what else is given."""
        fields: dict[str, Any] = {"code": self.code, "rule": self.rule, "path": self.path, "message": self.message}
        for name in _OPTIONAL:
            if (value := getattr(self, name)) is not None:
                fields[name] = value
        return fields

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Refusal":
        """Return the refusal with this JSON form."""
        optional = {name: document.get(name) for name in _OPTIONAL}
        return cls(document["code"], document["rule"], document["path"], document["message"], **optional)


_OPTIONAL = ("retry_after_ms", "requires", "values", "remedy")


class Verdict(msgspec.Struct, frozen=True):
    """The verdict on a packet: a function of (bytes, facts, contract).

    `facts` holds the JSON values that the rules and guards read and that a replay cannot derive from the packet alone;
    `warnings` the anti-drift checks in mode `warn` that failed.
    """

    kind: VerdictKind
    refusal: Refusal | None = None
    warnings: tuple[Refusal, ...] = ()
    facts: dict[str, Any] = msgspec.field(default_factory=dict)


# What corrects a refused packet, by the code of its refusal.

REMEDIES: Mapping[str, str] = {
    "TOO_LARGE": "put long texts into the artifact store and send their hash; split the session",
    "TOO_DEEP": "flatten the payload, or send it as an artifact",
    "MALFORMED": (
        "serialize the body with a JCS library (RFC 8785); write properties and headers by `docs/reference/protocol.md`"
    ),
    "SCHEMA_INVALID": "compare with `contracts/schemas/packet.schema.json`, or run `apc packet validate`",
    "SENDER_MISMATCH": "publish as the agent's own broker user with user_id set, without CC and BCC",
    "UNKNOWN_SENDER": "register it with `apc agent add`",
    "BAD_SIGNATURE": "set APC_AGENT_KEY_FILE, and register the public key",
    "DUPLICATE_CONFLICT": "use a fresh id; send `apc-cause` and `apc-ordinal` with a derived id",
    "EXPIRED": "raise ttl_ms, or send earlier",
    "CLOCK_SKEW": "synchronize the clock of the sender",
    "UNKNOWN_SESSION": (
        "send SIGNAL START first; compute the shard from the session_id with the deployment's APC_SHARDS"
    ),
    "UNKNOWN_CONTRACT": (
        "register the file with `apc contract register`, or without a broker put it into the folder of APC_CONTRACTS; "
        "give the fields that the contract's coordinator needs"
    ),
    "SESSION_TERMINAL": "open another session",
    "SESSION_PAUSED": "wait for RESUME, then send a new packet",
    "NOT_AUTHORIZED": "correct the registration, the SessionSpec or the rights",
    "UNROUTABLE": (
        "correct the recipients; `apc agent list` shows who handles what. If nobody has the role that is asked: "
        "`apc agent add NAME --person --role ROLE --via USER`, or `--person NAME:ROLE` of `apc run` and `apc up`"
    ),
    "PHASE_MISMATCH": "use the phase from the delivery headers or from SYNC",
    "GENERATION_MISMATCH": "use the generation from the delivery headers or from SYNC",
    "PHASE_FORBIDS_TYPE": "send it in a phase that allows it (phase table)",
    "CONTENT_INVALID": "compare the content with `apc schema show`; register the schema with `apc schema register`",
    "LINEAGE_REQUIRED": "add `lineage`",
    "PROOF_REQUIRED": "add `proof_bundle`",
    "TRANSFER_WINDOW_CLOSED": "wait for a generation whose window is open, or for min_generation",
    "THROTTLE_MODE": "use a mode that the phase allows",
    "THROTTLE_CROSS_USE_CASE": "wait for a generation whose window allows it",
    "THROTTLE_SCORE": "transfer only clearly better protocols; verified scores take precedence over declared ones",
    "THROTTLE_TOP_K": "set top_k to at most the window's limit; send fewer or better transfers",
    "PROTOCOL_DECAYED": "use another protocol, or wait for its recovery; `apc protocol list` shows which are blocked",
    "NOT_RETRACTABLE": "check target_packet_id",
    "DRIFT_CHECK_FAILED": (
        "correct the field at the path, so that the check that the message names holds; `apc contract explain NAME` "
        "lists the checks"
    ),
    "EVIDENCE_UNKNOWN": "cite packets of this session that were accepted and not taken back: `ctx.cite(packet)`",
    "RULE_FAILED": "do what the rule says; `apc contract show NAME` lists the rules",
    "LOOP_DETECTED": "add evidence, or stop",
    "QUOTA_EXCEEDED": "send a new packet after retry_after_ms, or raise `limits.quota`",
    "OVERLOADED": "send a new packet after retry_after_ms; add replicas of the recipient",
    "BUDGET_EXHAUSTED": "open a session with a larger budget, or ask for less",
}
"""The remedies of docs/reference/refusals.md."""
CONFLICT_REMEDIES: Mapping[str, str] = {
    "rerun": (
        "the first packet stands and nothing is to be sent again; let the handler give the same in each attempt: "
        "get what may change, such as a model's answer or the time, with `ctx.once`"
    ),
}
"""What prevents a conflict that has no code, by its kind."""


def remedy_of(code: str, kind: str = "", refusal: Mapping[str, Any] | None = None) -> str:
    """Return what corrects a refused packet: the remedy of its refusal document, else of the code or conflict kind.

    "" when nothing is known.
    """
    return (refusal or {}).get("remedy") or REMEDIES.get(code) or CONFLICT_REMEDIES.get(kind, "")
