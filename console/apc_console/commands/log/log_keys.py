"""The keys whose checkpoints `apc log` trusts."""

from collections.abc import Sequence

from apc_bus.settings import LogKeySettings
from apc_console.errors import InputUnusable
from apc_log.offline_verifier import CheckFailed, PublicKey, keys_of
from apc_persister.evidence.checkpoint import Signer, load_signer


class TrustedKeys:
    """The trusted keys: those given by the user, else the log's own."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._given = [key for text in texts for key in _read_key(text)]
        self._signer: Signer | None = None

    @property
    def signer(self) -> Signer:
        """Return the log's own key. Raises LogKeyMissing, LogKeyUnusable."""
        if self._signer is None:
            self._signer = load_signer(LogKeySettings())
        return self._signer

    def of_origin(self, origin: str) -> tuple[int, tuple[PublicKey, ...]]:
        """Return the shard of a log, and the keys that may have signed its checkpoints.

        Raises CheckFailed when there is no such key.
        """
        shard = origin.rpartition("/")[2]
        if shard.isascii() and shard.isdigit() and len(shard) < 10:
            try:
                found = tuple(key for key in self.all_of(int(shard)) if key.name == origin)
            except InputUnusable:
                found = ()
            if found:
                return int(shard), found
        raise CheckFailed(f"a checkpoint of {origin!r}, of which no key is known: give it with --key")

    def of(self, shard: int) -> PublicKey:
        """Return the first that was given for a shard. Raises InputUnusable."""
        return self.all_of(shard)[0]

    def all_of(self, shard: int) -> list[PublicKey]:
        """Return all that were given for a shard: a log whose key was changed has several. Raises InputUnusable."""
        if self._given:
            found = [key for key in self._given if key.name.rpartition("/")[2] == str(shard)]
            if not found:
                raise InputUnusable(f"no key of shard {shard} was given with --key: take those of `apc log key`")
            return found
        return list(self.signer.trusted(shard))


def _read_key(text: str) -> list[PublicKey]:
    try:
        return keys_of(text)
    except CheckFailed as error:
        raise InputUnusable(f"--key {error}") from error
