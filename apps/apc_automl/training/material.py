"""What goes into the training processes and comes back; light to import, unlike the work itself."""

import hashlib
from dataclasses import dataclass
from typing import Any, Self

JsonObject = dict[str, Any]


@dataclass(frozen=True)
class Blob:
    """Bytes from the artifact store and the hash by which they were fetched."""

    hash: str
    data: bytes

    @classmethod
    def of(cls, data: bytes) -> Self:
        """Make material of these bytes, with their hash."""
        return cls("sha256:" + hashlib.sha256(data).hexdigest(), data)

    @property
    def is_authentic(self) -> bool:
        """The bytes have the hash."""
        return self.hash == "sha256:" + hashlib.sha256(self.data).hexdigest()


@dataclass(frozen=True)
class Prepared:
    """A table ready for the swarms: the schema as JSON and the slices as CSV."""

    schema: bytes
    train: bytes
    held_out: bytes
    untouched: tuple[bytes, ...]
    rest: bytes
    """Rows to train the winner on that the search does not look at; empty without any."""
    profile: JsonObject


@dataclass(frozen=True)
class Study:
    """What a recipe is measured on."""

    schema: Blob
    train: Blob
    held_out: Blob
    seed: int
    rest: Blob | None = None
    """More rows to train the winner on."""


@dataclass(frozen=True)
class Measured:
    """A trained model and its measurement document; `gates` in it are the metric set of an EVAL."""

    model: bytes
    document: JsonObject
