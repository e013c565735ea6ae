"""A broker node with the definitions that `apc topology export` writes for two agents, and its management plugin."""

import json
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.integration.privilege.certificates import Certificates
from tests.support.apc_command import ApcCommand
from tests.support.servers import PrivateNode
from tests.support.servers.ports import free_ports

from apc_bus.rabbit import export_definitions
from apc_bus.topology import AgentQueues, Topology, build_topology
from apc_contracts.vocabulary import PacketType

SWARM = """
from apc_agents import Agent, HandlerContext
from apc_contracts import ClaimPayload, IdeaPayload, Packet, PacketType

alpha = Agent("alpha", role="builder", swarm="red")
beta = Agent("beta", role="builder", swarm="blue")


@alpha.on(PacketType.IDEA)
@beta.on(PacketType.IDEA)
async def answer(idea: Packet[IdeaPayload], ctx: HandlerContext) -> IdeaPayload:
    return idea.payload
"""
"""The module `swarm`: two agents that answer an IDEA with it."""
SHIPPED = Path(__file__).parents[3] / "deploy/rabbitmq-tls.conf"


@dataclass(frozen=True, slots=True)
class GuardedBroker:
    """A private node that imported what `apc topology export` writes."""

    node: PrivateNode
    topology: Topology
    passwords: dict[str, str]
    """Of every user of the definitions."""
    management_port: int
    """The API without TLS."""
    management_tls_port: int
    tls_port: int
    """Clients need a certificate there."""
    certificates: Certificates

    def url(self, user: str, vhost: str = "/") -> str:
        """Return the AMQP URL of a user of the definitions."""
        return self.node.url(vhost, user, self.passwords[user])

    def management_url(self, user: str = "guest", password: str = "guest") -> str:
        """Return the URL of the management API; guest is its administrator."""
        return f"http://{user}:{password}@127.0.0.1:{self.management_port}"


@pytest.fixture(scope="session")
def swarm_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the module `swarm`."""
    folder = tmp_path_factory.mktemp("swarm")
    (folder / "swarm.py").write_text(SWARM)
    return folder


@pytest.fixture(scope="session")
def guarded_broker(swarm_folder: Path) -> Iterator[GuardedBroker]:
    """One for all tests here: each leaves users and queues as it found them."""
    passwords = export_with_passwords(swarm_folder, "/", "definitions.json")
    agents = [AgentQueues(name, swarm, frozenset({PacketType.IDEA})) for name, swarm in SWARMS.items()]
    certificates = Certificates.make(swarm_folder)
    plain, management, tls = free_ports(3)
    config = tls_config(certificates, plain, management, tls)
    with PrivateNode(config, plugins=["rabbitmq_management"]) as node:
        node.ctl("import_definitions", str(swarm_folder / "definitions.json"))
        node.ctl("add_vhost", "elsewhere")
        yield GuardedBroker(node, build_topology(1, agents), passwords, plain, management, tls, certificates)


@pytest.fixture
def guarded_vhost(guarded_broker: GuardedBroker, tmp_path: Path) -> str:
    """A virtual host of the test's own, with the same topology for the same users."""
    name = f"guarded-{secrets.token_hex(4)}"
    definitions = export_definitions(guarded_broker.topology, vhost=name, passwords=guarded_broker.passwords)
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps(definitions))
    guarded_broker.node.ctl("import_definitions", str(file))
    return name


SWARMS = {"alpha": "red", "beta": "blue"}


def tls_config(certificates: Certificates, plain: int, management: int, broker: int) -> str:
    """Return what is shipped for TLS, with our certificates, beside plain ports.

    And clients must have a certificate.
    """
    server = certificates.issue("server", "localhost")
    ours = {
        "listeners.tcp = none": f"management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {plain}",
        "listeners.ssl.default = 5671": f"listeners.ssl.1 = 127.0.0.1:{broker}",
        "management.ssl.port = 15671": f"management.ssl.ip = 127.0.0.1\nmanagement.ssl.port = {management}",
        "fail_if_no_peer_cert = false": "fail_if_no_peer_cert = true",
        "/etc/rabbitmq/tls/authority.pem": str(certificates.authority),
        "/etc/rabbitmq/tls/server.pem": str(server),
        "/etc/rabbitmq/tls/server.key": str(server),
    }
    config = SHIPPED.read_text()
    for theirs, replaced in ours.items():
        assert theirs in config
        config = config.replace(theirs, replaced)
    return config


def export_with_passwords(folder: Path, vhost: str, out: str) -> dict[str, str]:
    """Run `apc topology export` for the two agents; returns the passwords, made at the first call."""
    export = ("topology", "export", "--vhost", vhost, "--out", out, "--passwords", "passwords.json")
    exported = ApcCommand(folder)(*export, "--agent", "swarm:alpha", "--agent", "swarm:beta")
    assert exported.returncode == 0, exported.stderr
    file = folder / "passwords.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    passwords: dict[str, str] = json.loads(file.read_text())
    return passwords
