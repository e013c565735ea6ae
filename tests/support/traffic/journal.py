"""A sender's journal file: attempts and confirms, so that the successor of a killed sender can send the rest."""

import os
from base64 import b64decode, b64encode
from pathlib import Path
from uuid import UUID

_TRIED, _CONFIRMED = "+", "="


class Journal:
    """One line for each attempt and each confirm, written before the next step. A torn last line was no attempt yet.

    Attributes:
        unconfirmed: packet id -> the bytes to publish again.
        confirmed: the packets that the broker has.
    """

    def __init__(self, path: Path) -> None:
        self.unconfirmed: dict[UUID, bytes] = {}
        self.confirmed: set[UUID] = set()
        for line in path.read_text().splitlines() if path.exists() else ():
            match line.split():
                case [mark, packet_id, body] if mark == _TRIED and line.endswith("."):
                    self.unconfirmed[UUID(packet_id)] = b64decode(body.removesuffix("."))
                case [mark, packet_id] if mark == _CONFIRMED and len(packet_id) == 36:
                    self._settle(UUID(packet_id))
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._write("")  # ends a torn line

    def tried(self, packet_id: UUID, body: bytes) -> None:
        """Write that a packet is about to be published."""
        self.unconfirmed[packet_id] = body
        self._write(f"{_TRIED} {packet_id} {b64encode(body).decode()}.")

    def is_confirmed(self, packet_id: UUID) -> None:
        """Write that the broker has confirmed a packet."""
        self._write(f"{_CONFIRMED} {packet_id}")
        self._settle(packet_id)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _settle(self, packet_id: UUID) -> None:
        self.unconfirmed.pop(packet_id, None)
        self.confirmed.add(packet_id)

    def _write(self, line: str) -> None:
        os.write(self._file, f"{line}\n".encode())
