"""Gate, log and worker in one process, with people."""

from collections.abc import AsyncIterator

import pytest

from ..conftest import House
from .office import Office


@pytest.fixture
async def office(house: House) -> AsyncIterator[Office]:
    async with house.persister():
        yield Office(house)
