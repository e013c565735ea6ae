"""A monitor of the log, written from C2SP tlog-tiles and docs/reference/log-format.md alone: it imports nothing of
ours.
"""

import hashlib
import http.client

from tests.persister.evidence.independent_verifier import node, power_below, read_head, read_key


class Monitor:
    """Reads checkpoints and tiles below a prefix of a server."""

    def __init__(self, host: str, port: int, prefix: str, key: str) -> None:
        self._host, self._port, self._prefix, self._key = host, port, prefix, key

    def get(self, path: str) -> tuple[int, bytes]:
        """Status and body."""
        connection = http.client.HTTPConnection(self._host, self._port, timeout=20)
        try:
            connection.request("GET", self._prefix + path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def checkpoint(self) -> tuple[int, bytes]:
        """Size and root, once the signature holds."""
        status, body = self.get("/checkpoint")
        assert status == 200
        name, raw = read_key(self._key)
        _, size, root = read_head({"key": self._key, "note": body.decode()}, "note", {name: raw})
        return size, root

    def tile(self, level: int, index: int, width: int) -> list[bytes]:
        """Return the first `width` hashes of a tile."""
        text = f"{index % 1000:03d}"
        while index >= 1000:
            index //= 1000
            text = f"x{index % 1000:03d}/{text}"
        partial = f".p/{width}" if width < 256 else ""
        status, body = self.get(f"/tile/{level}/{text}{partial}")
        assert status == 200 and len(body) == 32 * width, (status, len(body))
        return [body[at : at + 32] for at in range(0, len(body), 32)]

    def level(self, level: int, size: int) -> list[bytes]:
        """Return all hashes of a level of the tree of that size."""
        count = size >> 8 * level
        return [
            one
            for index in range((count + 255) // 256)
            for one in self.tile(level, index, min(256, count - 256 * index))
        ]


def root_over(leaves: list[bytes]) -> bytes:
    """MTH of RFC 6962, of leaf hashes."""
    if len(leaves) == 1:
        return leaves[0]
    k = power_below(len(leaves))
    return node(root_over(leaves[:k]), root_over(leaves[k:]))


def path_to(index: int, leaves: list[bytes]) -> list[bytes]:
    """PATH of RFC 6962 section 2.1.1."""
    if len(leaves) == 1:
        return []
    k = power_below(len(leaves))
    if index < k:
        return [*path_to(index, leaves[:k]), root_over(leaves[k:])]
    return [*path_to(index - k, leaves[k:]), root_over(leaves[:k])]


def leaf_of(entry: str) -> bytes:
    """Return the leaf hash of an entry."""
    return hashlib.sha256(b"\x00" + entry.encode()).digest()
