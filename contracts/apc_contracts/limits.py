"""How big a packet may be (docs/specification/contract.md section 2)."""

from dataclasses import dataclass

MAX_SAFE_INTEGER = 2**53 - 1
"""The largest integer that every JSON reader represents exactly (RFC 8785 allows no larger one)."""


@dataclass(frozen=True, slots=True)
class DocumentLimits:
    """Bounds of one document; the contract file may set others.

    A node is a JSON value, the document itself included; keys are not counted.
    """

    size_bytes: int = 256 * 1024
    levels: int = 32
    nodes: int = 20_000
    is_logged: bool = False
    """The log holds it already: numbers may be written in any way, as gates once let them in."""


DEFAULT_LIMITS = DocumentLimits()
