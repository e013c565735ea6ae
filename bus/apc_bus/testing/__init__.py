"""Real services for tests: a RabbitMQ from Docker, from APC_AMQP_URL, or a private node of the installed one.

Used by this repository's `tests/conftest.py`, and usable by the tests of anybody's agents.
"""

from apc_bus.testing.postgres import PostgresServer, local_postgres, postgres_choice, start_given_postgres
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
    "find_scripts",
    "local_postgres",
    "postgres_choice",
    "rabbit_choice",
    "start_given_postgres",
    "start_rabbit",
]
