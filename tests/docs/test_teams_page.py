"""The guide of teams: its team works, and its code can be imported as it stands."""

import importlib
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.models.test import TestModel

from apc_agents import AgentTestClient, content_of, load_team
from apc_agents.typed import schema_of
from apc_cli.commands.contract import write_contract
from apc_client import TeamTestClient
from apc_contracts.contract.contract import task_contract
from apc_contracts.payloads.by_type import DecisionPayload

PAGE = Path(__file__).parents[2] / "docs/how-to/teams.md"


async def test_the_team_of_the_page_works(tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "desk_of_the_page.py").write_text("\n\n".join(blocks))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    write_contract("publishing", task_contract())
    desk: Any = importlib.import_module("desk_of_the_page")
    team = load_team("desk_of_the_page:team")
    assert schema_of(team.input or int) == "question/1"
    async with AgentTestClient(team.agent("reader")) as client:
        reply = await client.send(desk.Question(text="why"))
    assert reply is not None
    assert content_of(reply, desk.Answer).sources == ["a.txt"]
    expert = load_team("desk_of_the_page:experts").agent("expert")
    with desk.my_agent.override(model=TestModel(custom_output_args={"text": "because"})):
        async with AgentTestClient(expert) as client:
            done = await client.send(desk.Question(text="why"))
    assert done is not None
    result = done.payload_as(DecisionPayload).result
    assert result is not None
    assert result.content == {"text": "because", "sources": []}
    monkeypatch.setattr(desk, "TeamTestClient", partial(TeamTestClient, database_url=postgres_url))
    await desk.check()
    await desk.check_publishers()
    async with AgentTestClient(team.agent("reader"), contract="publishing.json") as client:
        assert await client.send(desk.Question(text="why")) is not None
    monkeypatch.setenv("APC_DATABASE_URL", postgres_url)
    monkeypatch.setenv("APC_DATA_DIR", str(tmp_path))
    monkeypatch.delenv("APC_AMQP_URL", raising=False)
    await desk.main()
