"""What `apc agent add ID` registers of an agent whose code it does not know."""

import pytest

from apc_cli.commands.agent import AgentForm


@pytest.mark.parametrize(
    ("handles", "speaks", "schemas", "versions"),
    [
        ("IDEA", "apc/1.0", None, None),
        ("idea, message", "apc/1.0, apc/1.1", ("*",), ("apc/1.0", "apc/1.1")),
    ],
)
def test_an_agent_that_handles_messages_takes_every_schema(
    handles: str, speaks: str, schemas: object, versions: object
) -> None:
    change = AgentForm("a-1", "role", "swarm", "", handles, (), None, speaks).change("agent.a-1")
    assert (change.schemas, change.speaks) == (schemas, versions)
