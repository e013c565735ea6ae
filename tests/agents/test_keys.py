"""Where an agent's signing key comes from, and what is said of one that cannot be used."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from pydantic import SecretStr

from apc_agents import Agent, Worker, WorkerSettings
from apc_agents.errors import AgentKeyUnusable
from apc_agents.keys import find_key, make_key, read_key
from apc_bus.in_memory import InMemoryBroker
from apc_contracts.identity.signing import key_id_of


def test_the_key_of_a_file_and_of_the_environment_are_the_same(tmp_path: Path) -> None:
    made = make_key(tmp_path / "deep" / "red.1.pem")
    by_file = find_key(WorkerSettings(agent_key_file=tmp_path / "deep" / "{agent_id}.pem"), "red.1")
    text = (tmp_path / "deep" / "red.1.pem").read_text().replace("\n", "\\n")
    by_text = find_key(WorkerSettings(agent_key=SecretStr(text)), "red.1")
    assert by_file is not None and by_text is not None
    assert by_file.public_key == by_text.public_key == made.public_key
    assert made.key_id == key_id_of(made.public_key)
    assert "key=" not in repr(made), "a log must not show it"
    assert find_key(WorkerSettings(), "red.1") is None


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    made = make_key(tmp_path / "key.pem")
    with pytest.raises(AgentKeyUnusable, match="File exists"):
        make_key(tmp_path / "key.pem")
    assert read_key(tmp_path / "key.pem").public_key == made.public_key


def test_a_key_of_another_kind_is_refused(tmp_path: Path) -> None:
    other = generate_private_key(SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (tmp_path / "key.pem").write_bytes(other)
    with pytest.raises(AgentKeyUnusable, match="of another kind; it must be Ed25519"):
        read_key(tmp_path / "key.pem")
    (tmp_path / "key.pem").write_bytes(b"\xff\xfe")
    with pytest.raises(AgentKeyUnusable, match=r"key\.pem"):
        read_key(tmp_path / "key.pem")


def test_a_worker_that_cannot_sign_does_not_start(memory_broker: InMemoryBroker, tmp_path: Path) -> None:
    agent = Agent("red-1", role="role", swarm="red")
    with pytest.raises(AgentKeyUnusable, match=r"No such file.*apc key new"):
        Worker(agent, memory_broker.connect("red-1"), settings=WorkerSettings(agent_key_file=tmp_path / "none.pem"))
