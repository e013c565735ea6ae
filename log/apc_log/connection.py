"""A connection to the log's database."""

import asyncpg
from asyncpg.pool import PoolConnectionProxy

AnyConnection = asyncpg.Connection | PoolConnectionProxy
"""A connection, or a pool's proxy of one."""
