"""RabbitMQ's management API when the node fails at a call, as it does when a connection ends while it is closed."""

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from apc_bus.errors import BusUnavailable
from apc_bus.rabbit.management import Management


class FailingNode(ThreadingHTTPServer):
    """Fails at its first `failures` calls of a path with 500, then has no such thing."""

    failures = 0

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[str] = []


class _Handler(BaseHTTPRequestHandler):
    def do_DELETE(self) -> None:
        node = self.server
        assert isinstance(node, FailingNode)
        node.asked.append(self.path)
        self.send_response(500 if node.asked.count(self.path) <= node.failures else 204)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def node() -> Iterator[FailingNode]:
    with FailingNode() as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


async def test_a_call_at_which_the_node_failed_is_repeated(node: FailingNode) -> None:
    node.failures = 1
    management = Management(f"http://guest:guest@127.0.0.1:{node.server_port}")

    assert await management.delete_user("agent.x")
    assert node.asked == ["/api/users/agent.x"] * 2 + ["/api/connections/username/agent.x"] * 2


async def test_a_node_that_goes_on_failing_is_named(node: FailingNode) -> None:
    node.failures = 99
    management = Management(f"http://guest:guest@127.0.0.1:{node.server_port}")

    with pytest.raises(BusUnavailable, match=r"refuses DELETE users/agent\.x: 500"):
        await management.delete_user("agent.x")
