"""Log refused input that takes no id, as much of it as the contract keeps."""

from uuid import UUID

from apc_contracts.contract.limit_sections import RefusedInput
from apc_contracts.judging.verdict import Refusal
from apc_contracts.wire.refused_input import Flood, RefusedQuotas, kept_of
from apc_log.batch import ConflictEntry
from apc_orchestrator.batch import Batch

FLOOD = "flood"
"""The kind of the entry that summarises refused input beyond its sender's quota."""
_LONGEST_NAME = 255
NOBODY = ""
"""The broker user of messages without one: they share a quota."""


class Quarantine:
    """Records conflicts and counts the refused input of each broker user."""

    def __init__(self, rules: RefusedInput) -> None:
        self._rules = rules
        self._quotas = RefusedQuotas(rules)

    def has_room(self, batch: Batch, raw: bytes, user_id: str | None) -> bool:
        """Return whether the sender's quota for refused input has room for this body.

        Draw it, or count it as a flood.
        """
        user = user_id or NOBODY
        size = len(raw) if len(raw) <= self._rules.whole_bytes else self._rules.head_bytes
        if self._quotas.draw(user, size, batch.now):
            return True
        batch.flood_of(user).add(raw)
        return False

    def record(
        self,
        batch: Batch,
        kind: str,
        reason: str,
        raw: bytes,
        *,
        user_id: str | None,
        code: str | None = None,
        session_id: str | None = None,
        packet_id: UUID | None = None,
        first_hash: bytes | None = None,
        second_hash: bytes | None = None,
        is_always_kept: bool = False,
    ) -> bool:
        """Record a conflict with its bytes; False when it only counts as part of a flood."""
        if not is_always_kept and not self.has_room(batch, raw, user_id):
            return False
        kept = kept_of(raw, self._rules)
        hash_of_all = second_hash or kept.second_hash
        batch.entries.append(
            ConflictEntry(
                session_id, packet_id, kind, code, reason + kept.note, kept.raw, first_hash, hash_of_all, user_id
            )
        )
        return True


def dead_input_refusal(queue: str, reason: str) -> Refusal:
    """Return why an input that was dead-lettered in a queue was not judged."""
    # Forged headers may hold a NUL, which no row of the log can.
    queue, reason = (text[:_LONGEST_NAME].replace("\0", "\\0") for text in (queue, reason))
    message = (
        f"the message died in queue {queue} ({reason}) before it was judged: "
        "send it without AMQP expiration, the packet says itself when it expires"
    )
    return Refusal("EXPIRED", "arrives_alive", "$", message)


def flood_entry(user: str, flood: Flood) -> ConflictEntry:
    """Return the row of packet_conflicts that stands for what a broker user has sent beyond its quota in one batch."""
    return ConflictEntry(
        None, None, FLOOD, "QUOTA_EXCEEDED", flood.reason, b"", None, flood.digest, None if user == NOBODY else user
    )
