"""Tools for the tests of minds."""

import pytest

from apc_minds.actions import ToolRegistry


@pytest.fixture
def tools() -> ToolRegistry:
    """One that adds, and one whose result is too long for any window."""
    registry = ToolRegistry()

    @registry.tool()
    async def add(left: int, right: int) -> int:
        """Adds two numbers."""
        return left + right

    @registry.tool()
    async def long_page() -> str:
        """Gives a very long page."""
        return "word " * 20_000

    return registry
