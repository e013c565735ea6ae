"""The key by which a session recognises equal content."""

from collections.abc import Sequence
from typing import TypeAlias

Content: TypeAlias = tuple[bytes, str, int, str | tuple[str, ...]]
"""payload_hash, sender, generation and recipients of a packet."""


def content_of(sender: str, payload_hash: bytes, generation: int, addressed: Sequence[str]) -> Content:
    """Return the key for equal content; a single recipient, the usual case, is a plain string."""
    return payload_hash, sender, generation, addressed[0] if len(addressed) == 1 else tuple(addressed)
