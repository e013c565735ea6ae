"""Real services for tests: a RabbitMQ and a Postgres of this machine, or from containers."""

from tests.support.servers.containers import containers_asked
from tests.support.servers.postgres import (
    PostgresServer,
    asked_version,
    local_postgres,
    postgres_choice,
    start_given_postgres,
)
from tests.support.servers.private_cluster import PrivateCluster
from tests.support.servers.private_node import PrivateNode, find_scripts
from tests.support.servers.proxy import Proxy
from tests.support.servers.rabbit import RabbitServer, rabbit_choice, start_rabbit
from tests.support.servers.s3 import S3Account, S3Server
from tests.support.servers.shared_node import SharedNode, reach_shared_node

__all__ = [
    "PostgresServer",
    "PrivateCluster",
    "PrivateNode",
    "Proxy",
    "RabbitServer",
    "S3Account",
    "S3Server",
    "SharedNode",
    "asked_version",
    "containers_asked",
    "find_scripts",
    "local_postgres",
    "postgres_choice",
    "rabbit_choice",
    "reach_shared_node",
    "start_given_postgres",
    "start_rabbit",
]
