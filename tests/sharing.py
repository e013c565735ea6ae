"""What the workers of pytest-xdist share: one broker node, of the process that starts them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.servers import RabbitServer, SharedNode, rabbit_choice, reach_shared_node, start_rabbit

_FOLDER = "apc_shared_node"
_shared = pytest.StashKey[SharedNode]()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker that is about to start where the node will be."""
    if rabbit_choice() == "private node":
        if _shared not in node.config.stash:
            node.config.stash[_shared] = SharedNode()
        node.workerinput[_FOLDER] = str(node.config.stash[_shared].folder)


def pytest_unconfigure(config: pytest.Config) -> None:
    if _shared in config.stash:
        config.stash[_shared].close()


@pytest.fixture(scope="session")
def rabbit_server(request: pytest.FixtureRequest) -> Iterator[RabbitServer]:
    """The broker of this run; without one the tests fail, they are not skipped."""
    folder = getattr(request.config, "workerinput", {}).get(_FOLDER)
    server = start_rabbit() if folder is None else reach_shared_node(Path(folder))
    yield server
    server.close()
