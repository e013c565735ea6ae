"""Errors of a replay whose log does not contain what it should."""

from typing import Any

from apc_contracts.errors import ContractError


class ReplayDiffers(ContractError):
    """The first place where the record differs from the recomputation.

    `place` is shard/seq, `what` the table and column, `recorded` and `recomputed` the two values.
    """

    def __init__(self, shard: int, seq: int, what: str, recorded: Any, recomputed: Any) -> None:
        super().__init__(f"entry {shard}/{seq}, {what}: recorded {_short(recorded)}, recomputed {_short(recomputed)}")
        self.shard = shard
        self.seq = seq
        self.what = what
        self.recorded = recorded
        self.recomputed = recomputed

    @property
    def document(self) -> dict[str, Any]:
        """Return the difference as a JSON object."""
        place = {"shard": self.shard, "seq": self.seq, "what": self.what}
        return place | {"recorded": _short(self.recorded), "recomputed": _short(self.recomputed)}


class ReplayImpossible(ContractError):
    """Something that a replay needs is missing: an erased body, an unknown contract."""

    def __init__(self, shard: int, seq: int, message: str) -> None:
        super().__init__(f"entry {shard}/{seq}: {message}")
        self.shard = shard
        self.seq = seq
        self.message = message

    @property
    def document(self) -> dict[str, Any]:
        """Return what is missing, as a JSON object."""
        return {"shard": self.shard, "seq": self.seq, "what": "impossible", "message": self.message}


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 300 else f"{text[:300]}…"
