"""What the log keeps of refused input: how much of a body, and how much per broker user.

A body above the limit is logged with its hash, its length and its beginning. Input beyond its sender's quota is only
counted: number, bytes, and one hash over all bodies.
"""

from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256

from apc_contracts.contract.file import RefusedInput
from apc_contracts.judging.quotas import Pace, TokenBuckets

_GRAIN = 64
"""Bytes are drawn in units of this size, so that the time of one is a whole number of microseconds."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept of a body; `second_hash` is the hash of the whole body when it was cut."""

    raw: bytes
    second_hash: bytes | None = None
    note: str = ""
    """For the reason of the entry."""


def kept_of(body: bytes, rules: RefusedInput) -> Kept:
    """Return a body as the log keeps it."""
    if len(body) <= rules.whole_bytes:
        return Kept(body)
    note = f" [{len(body)} bytes, the first {rules.head_bytes} of them kept; second_hash is of all]"
    return Kept(body[: rules.head_bytes], sha256(body).digest(), note)


class RefusedQuotas:
    """How much refused input of each broker user the log takes: messages and bytes, a bucket each."""

    def __init__(self, rules: RefusedInput) -> None:
        self._messages, self._bytes = TokenBuckets(), TokenBuckets()
        self._message_pace = Pace.of(rules.messages_per_second, rules.messages_burst)
        self._byte_pace = Pace.of(rules.bytes_per_second / _GRAIN, max(1, rules.bytes_burst // _GRAIN))

    def __len__(self) -> int:
        """Return the number of broker users that are remembered."""
        return len(self._messages)

    def draw(self, user: str, size: int, now: datetime) -> bool:
        """Return whether the quota of the user has room for an input of this size, and draw it."""
        grains = 1 + size // _GRAIN
        if self._messages.wait(user, self._message_pace, now) or self._bytes.wait(user, self._byte_pace, now, grains):
            return False
        self._messages.draw(user, self._message_pace, now)
        self._bytes.draw(user, self._byte_pace, now, grains)
        return True


@dataclass(slots=True)
class Flood:
    """Refused input of one broker user beyond its quota."""

    inputs: int = 0
    size: int = 0
    digest: bytes = b""
    """SHA-256 over the digest before and the hash of the body: in the order of arrival."""

    def add(self, body: bytes) -> None:
        """Count an input; only its size and its hash are kept."""
        self.inputs += 1
        self.size += len(body)
        self.digest = sha256(self.digest + sha256(body).digest()).digest()

    @property
    def reason(self) -> str:
        """The reason of the entry that stands for all of them."""
        return f"{self.inputs} refused inputs of {self.size} bytes beyond the quota of their broker user: not kept"
