"""Public names of the first release that have a new name: they work for one minor release, and say so."""

import pytest

import apc_agents
import apc_bus


@pytest.mark.parametrize(
    ("package", "former", "now"),
    [(apc_agents, "MemoryStateStore", "InMemoryStateStore"), (apc_bus, "MemoryBroker", "InMemoryBroker")],
)
def test_a_former_name_works_and_names_the_new_one(package: object, former: str, now: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"{former} is now {now}"):
        assert getattr(package, former) is getattr(package, now)
    with pytest.raises(AttributeError, match="no attribute 'Neither'"):
        package.Neither  # type: ignore[attr-defined]  # noqa: B018
