"""A database that goes away in the middle of a transaction."""

import asyncpg
import pytest

from apc_agents.memory.errors import MemoryUnavailable
from apc_agents.memory.statements import owned


async def test_a_connection_that_dies_between_two_steps_is_a_store_that_is_away(postgres_url: str) -> None:
    """Found by the soak: taken for a fault of the handler, it cost healthy packets their delivery."""
    async with asyncpg.create_pool(postgres_url, min_size=1, max_size=1) as pool:
        with pytest.raises(MemoryUnavailable, match="another operation"):
            async with owned(pool, "agent"):
                raise asyncpg.InternalClientError("cannot switch to state 15; another operation (2) is in progress")
