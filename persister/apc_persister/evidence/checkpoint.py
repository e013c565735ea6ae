"""Signs the heads of the tree: C2SP tlog-checkpoint, a signed-note with Ed25519."""

import base64
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from apc_bus.folders import create_private_file
from apc_bus.settings import LogKeySettings
from apc_bus.telemetry import get_logger
from apc_contracts.identity.signing import pem_of, private_key_of
from apc_log.offline_verifier import CheckFailed, Checkpoint, Contents, PublicKey, parse_key
from apc_persister.errors import LogKeyMissing, LogKeyUnusable, PreviousKeyUnusable

KEY_FILE = "log-key.pem"
"""In the data folder, unless a setting says otherwise."""

_LOG_NAME = "apc-log"

log = get_logger(__name__)


class Signer:
    """The log's signing key."""

    def __init__(self, key: Ed25519PrivateKey, log_name: str | None, previous: Sequence[PublicKey] = ()) -> None:
        """Sign for a log; the origins of its shards start with `log_name`, by default one of this key alone. `previous`
        are the keys that signed this log before, of any of its shards."""
        self._key = key
        self._raw = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self._log_name = log_name or f"{_LOG_NAME}-{sha256(self._raw).hexdigest()[:16]}"
        self._previous = tuple(previous)

    def public_key(self, shard: int) -> PublicKey:
        """Return the key under the origin of a shard: `<log name>/<shard>`."""
        return PublicKey(f"{self._log_name}/{shard}", self._raw)

    def trusted(self, shard: int) -> tuple[PublicKey, ...]:
        """Return the keys that may have signed a checkpoint of a shard: this one, then the previous ones."""
        before = (key for key in self._previous if key.name.rpartition("/")[2] == str(shard))
        return (self.public_key(shard), *before)

    def sign(self, shard: int, size: int, root: bytes) -> str:
        """Return the signed note of a tree head. The same head gives the same note, always."""
        return self._note(shard, Checkpoint(self.public_key(shard).name, size, root).text)

    def sign_contents(
        self, shard: int, size: int, run_id: str, shards: Iterable[int], ranges: Iterable[tuple[int, int]]
    ) -> str:
        """Return the signed note that says which entries the log of a shard holds of a run.

        Args:
            shard: whose log.
            size: entries of this log.
            run_id: the run.
            shards: all whose logs hold entries of the run.
            ranges: first and last number of each range of entries.
        """
        origins = tuple(self.public_key(one).name for one in sorted(shards))
        return self._note(shard, Contents(self.public_key(shard).name, size, run_id, origins, tuple(ranges)).text)

    def _note(self, shard: int, text: str) -> str:
        key = self.public_key(shard)
        signature = base64.b64encode(key.key_id + self._key.sign(text.encode())).decode()
        return f"{text}\n— {key.name} {signature}\n"


def load_signer(settings: LogKeySettings) -> Signer:
    """Return the signer of APC_LOG_KEY, APC_LOG_KEY_FILE, or the key in the data folder.

    Raises:
        LogKeyMissing: there is none; says how to make one.
        LogKeyUnusable: not an unencrypted Ed25519 key in PEM.
        PreviousKeyUnusable: APC_LOG_PREVIOUS_KEYS holds what is no public key.
    """
    return Signer(_load_key(settings), settings.log_name, _previous_keys(settings))


def _previous_keys(settings: LogKeySettings) -> list[PublicKey]:
    try:
        return [parse_key(text) for text in settings.log_previous_keys.split()]
    except CheckFailed as error:
        raise PreviousKeyUnusable(str(error)) from error


def _load_key(settings: LogKeySettings) -> Ed25519PrivateKey:
    if settings.log_key is not None:
        return _parse(settings.log_key.get_secret_value(), "APC_LOG_KEY")
    path = key_file(settings)
    try:
        text = path.read_text()
    except FileNotFoundError:
        raise LogKeyMissing(path) from None
    except (OSError, UnicodeError) as error:
        raise LogKeyUnusable(str(path), str(error)) from error
    return _parse(text, str(path))


def key_file(settings: LogKeySettings) -> Path:
    """Return where the key stands unless it is in APC_LOG_KEY."""
    return settings.log_key_file or settings.data_dir / KEY_FILE


def ensure_key(settings: LogKeySettings) -> bool:
    """Make a key where the settings look for one, unless there is one; whether it was made.

    The file is for its owner alone (mode 0600). Anyone who has it and the database can rewrite what no checkpoint held
    elsewhere covers: keep it off the database's host, and a copy of it somewhere safe.

    Raises:
        LogKeyUnusable: the file cannot be written.
    """
    path = key_file(settings)
    if settings.log_key is not None or path.exists():
        return False
    pem = pem_of(Ed25519PrivateKey.generate())
    try:
        create_private_file(path, pem)
    except FileExistsError:  # another process made it just now
        return False
    except OSError as error:
        raise LogKeyUnusable(str(path), str(error)) from error
    log.warning("log_key_made", file=str(path), hint="it signs the log's checkpoints: keep a copy, and keep it secret")
    return True


def _parse(text: str, where: str) -> Ed25519PrivateKey:
    try:
        return private_key_of(text)
    except ValueError as error:
        raise LogKeyUnusable(where, str(error)) from error
