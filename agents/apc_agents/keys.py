"""The key with which an agent signs: made once, kept in a file or the environment, known by its public half.

Ed25519 in PEM (PKCS8, not encrypted), as `openssl genpkey -algorithm ed25519` writes it.
"""

from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from apc_agents.errors import AgentKeyUnusable
from apc_bus.folders import create_private_file
from apc_bus.settings import WorkerSettings
from apc_contracts.identity.signing import encode_public_key, key_id_of, new_private_key, pem_of, private_key_of, sign
from apc_contracts.wire.parsing import SealedPacket

AGENT_ID = "{agent_id}"
"""In APC_AGENT_KEY_FILE: stands for the agent's id, so that agents of one environment have their own keys."""


@dataclass(frozen=True, slots=True)
class AgentKey:
    """A private key, its public key, and the short name of that."""

    private_key: Ed25519PrivateKey = field(repr=False)

    @property
    def public_key(self) -> str:
        """The 32 bytes of the public key in base64, as the registry holds them."""
        return encode_public_key(self.private_key)

    @property
    def key_id(self) -> str:
        """The short name of the public key, which signatures begin with."""
        return key_id_of(self.public_key)

    def sign(self, sealed: SealedPacket) -> str:
        """Return the header `apc-signature` of a packet; what a Worker takes as `sign`."""
        return sign(self.private_key, self.key_id, sealed)


def find_key(settings: WorkerSettings, agent_id: str) -> AgentKey | None:
    """Return the key of APC_AGENT_KEY or APC_AGENT_KEY_FILE; None when neither is set: the agent does not sign.

    Raises:
        AgentKeyUnusable: it cannot be read, or is no Ed25519 key in PEM.
    """
    if settings.agent_key is not None:
        return _parse(settings.agent_key.get_secret_value(), "in APC_AGENT_KEY")
    if settings.agent_key_file is not None:
        return read_key(Path(str(settings.agent_key_file).replace(AGENT_ID, agent_id)))
    return None


def read_key(path: Path) -> AgentKey:
    """Return the key in a file. Raises AgentKeyUnusable."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise AgentKeyUnusable(str(path), f"{reason}; `apc key new` makes one") from error
    return _parse(text, str(path))


def make_key(path: Path) -> AgentKey:
    """Make a key in a new file, for its owner alone (mode 0600). Raises AgentKeyUnusable; never overwrites."""
    key = AgentKey(new_private_key())
    try:
        create_private_file(path, pem_of(key.private_key))
    except OSError as error:
        raise AgentKeyUnusable(str(path), error.strerror or str(error)) from error
    return key


def _parse(text: str, where: str) -> AgentKey:
    try:
        return AgentKey(private_key_of(text))
    except ValueError as error:
        raise AgentKeyUnusable(where, str(error)) from error
