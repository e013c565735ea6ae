"""Which broker user an agent is registered with when none is named."""

import pytest
from pydantic import SecretStr

from apc_bus.settings import BusSettings
from apc_bus.topology import AgentQueues
from apc_cli.commands.agent_logins import cut_off, user_of_agent


@pytest.fixture(autouse=True)
def nothing_is_managed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("APC_MANAGEMENT_URL", raising=False)


def settings(user: str) -> BusSettings:
    return BusSettings(amqp_url=SecretStr(f"amqp://{user}:p@broker/"))


@pytest.mark.parametrize(
    ("ours", "is_managed", "theirs"),
    [
        ("guest", False, "guest"),
        ("guest", True, "agent.planner-1"),
        ("operator", False, "agent.planner-1"),
        ("operator", True, "agent.planner-1"),
    ],
)
def test_an_agent_shares_only_in_development(
    ours: str, is_managed: bool, theirs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_managed:
        monkeypatch.setenv("APC_MANAGEMENT_URL", "http://admin:p@broker:15672")
    assert user_of_agent(settings(ours), "planner-1") == theirs


async def test_what_revoking_leaves_to_the_operator() -> None:
    shared = await cut_off(settings("guest"), "a", "guest", [])
    assert shared == ["broker user guest of agent a stays: it is not the agent's alone; give each its own"]
    other = [AgentQueues("b", "red", broker_user="both")]
    assert "agents b share it" in (await cut_off(settings("guest"), "a", "both", other))[0]
    (own,) = await cut_off(settings("guest"), "a", "agent.a", [])
    assert "`rabbitmqctl delete_user agent.a`" in own
