"""Real services for tests: a RabbitMQ and a Postgres of this machine, or from containers.

Used by this repository's `tests/conftest.py`, and usable by the tests of anybody's agents.
"""

from apc_bus.testing.containers import containers_asked
from apc_bus.testing.postgres import (
    PostgresServer,
    asked_version,
    local_postgres,
    postgres_choice,
    start_given_postgres,
)
from apc_bus.testing.private_cluster import PrivateCluster
from apc_bus.testing.private_node import PrivateNode, find_scripts
from apc_bus.testing.proxy import Proxy
from apc_bus.testing.rabbit import RabbitServer, rabbit_choice, start_rabbit
from apc_bus.testing.s3 import S3Account, S3Server

__all__ = [
    "PostgresServer",
    "PrivateCluster",
    "PrivateNode",
    "Proxy",
    "RabbitServer",
    "S3Account",
    "S3Server",
    "asked_version",
    "containers_asked",
    "find_scripts",
    "local_postgres",
    "postgres_choice",
    "rabbit_choice",
    "start_given_postgres",
    "start_rabbit",
]
