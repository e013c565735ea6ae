"""Messages between a process and the one that reads models for it: a line of JSON, then plain bytes."""

import json
from dataclasses import dataclass
from typing import IO, Any, Self

LONGEST_LINE = 64 * 1024
LARGEST_REQUEST = 2**30
LARGEST_ANSWER = 2**26

Header = dict[str, Any]


@dataclass(frozen=True)
class Request:
    """Predict these rows with this model; `again` = also after one more way through a file."""

    model: bytes
    schema: bytes
    rows: bytes
    again: bool

    @classmethod
    def of(cls, header: Header, parts: list[bytes]) -> Self:
        """Return the request in a frame."""
        model, schema, rows = parts
        return cls(model, schema, rows, bool(header["again"]))

    def write(self, target: IO[bytes]) -> None:
        """Send it as a frame."""
        write_frame(target, {"again": self.again}, self.model, self.schema, self.rows)


def write_frame(target: IO[bytes], header: Header, *parts: bytes) -> None:
    """Send a header and its parts."""
    line = json.dumps(header | {"sizes": [len(part) for part in parts]}).encode()
    target.write(line + b"\n")
    for part in parts:
        target.write(part)
    target.flush()


def read_frame(source: IO[bytes], largest: int) -> tuple[Header, list[bytes]] | None:
    """Return the next header and its parts; None where the source has ended.

    Args:
        largest: bytes that the parts may have together.

    Raises:
        ValueError: this is no frame, or too large a one.
    """
    line = source.readline(LONGEST_LINE)
    if not line:
        return None
    header = json.loads(line)
    if not isinstance(header, dict):
        raise ValueError("a frame begins with a JSON object")
    sizes = header.pop("sizes", ())
    if not all(isinstance(size, int) and size >= 0 for size in sizes) or sum(sizes) > largest:
        raise ValueError(f"the parts of a frame have at most {largest} bytes together")
    parts = [source.read(size) for size in sizes]
    if [len(part) for part in parts] != sizes:
        return None
    return header, parts
