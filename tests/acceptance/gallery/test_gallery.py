"""The teams of examples/, as their READMEs run them, and what they do with other inputs."""

import json
import re
import shutil
from datetime import UTC, datetime
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
from tests.support.apc_command import ApcCommand

from apc_agents.errors import AgentError
from apc_client import TeamTestClient

from .conftest import EXAMPLES, load

pytestmark = pytest.mark.long


def commands_of(folder: Path) -> str:
    """Return the first shell block of a README."""
    found = re.search(r"```bash\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    assert found is not None
    return found[1]


@pytest.mark.parametrize(
    ("folder", "answers", "said"),
    [
        ("support-desk", "maybe\ny gladly\n", {"outcome": "refunded"}),
        ("incident-room", "maybe\ny\n", {"service": "shop"}),
        ("retrieval-with-critic", "", {"source": "log.txt", "refused": []}),
        ("nightly-job", "", {"text": "2 orders, 505.00 in all"}),
    ],
)
def test_its_readme_runs_as_it_is_written(
    folder: str, answers: str, said: dict[str, Any], apc: ApcCommand, tmp_path: Path
) -> None:
    shutil.copytree(EXAMPLES / folder, apc.folder, dirs_exist_ok=True)
    shown, command = commands_of(apc.folder).splitlines()
    text, _, name = shown.removeprefix("echo '").partition("' > ")
    (apc.folder / name).write_text(text)
    done = apc(*command.split()[1:], stdin=answers)
    assert done.returncode == 0, done.stderr
    content = json.loads(done.stdout)["result"]["content"]
    assert said.items() <= content.items()
    readme = (apc.folder / "README.md").read_text()
    assert all(json.dumps(value) in readme for value in content.values()), content
    if answers:
        assert done.stderr.count("approve? y or n") == 2, "asked again after a word that is neither"


async def test_the_desk_pays_only_what_may_be_paid(postgres_url: str, tmp_path: Path) -> None:
    desk = load("support-desk", "desk")
    people = {"sam": "support-lead"}
    async with TeamTestClient(desk.team, people=people, database_url=postgres_url, folder=tmp_path) as client:
        small = await client.run(desk.Complaint(order="A-1", text="late"))
        assert (small.outcome, small.text) == ("refunded", "25.00 is on its way, receipt A-1-25.00.")
        assert (await client.run(desk.Complaint(order="Z", text=""))).outcome == "unknown order"
        session = await client.start(desk.Complaint(order="A-2", text="broken"))
        assert "broken" in ((await client.question(session)).text or "")
        assert await client.answer(session, approved=False, note="It was worn.") == "sam"
        assert await session.result(timeout=30) == desk.Reply(outcome="denied", text="It was worn.")
        assert not [one for one in await client.events(session) if one.sender == "cashier"]


async def test_the_critic_refuses_what_the_source_does_not_say(postgres_url: str, tmp_path: Path) -> None:
    retrieval = load("retrieval-with-critic", "retrieval")
    async with TeamTestClient(retrieval.team, database_url=postgres_url, folder=tmp_path) as client:
        found = await client.run(retrieval.Question(text="Can a handler wait for people?"))
        assert (found.source, found.refused) == ("people.txt", [])
        nothing = await client.run(retrieval.Question(text="Which colour has every zebra packet elsewhere?"))
        assert (nothing.quotation, sorted(nothing.refused)) == (None, ["gate.txt", "log.txt"])
        assert (await client.run(retrieval.Question(text="Zebra?"))).refused == []


async def test_the_night_reports_the_day_before_by_its_readme(postgres_url: str, tmp_path: Path) -> None:
    nightly = load("nightly-job", "nightly")
    found = re.search(r"```python\n(.*?)```", (EXAMPLES / "nightly-job/README.md").read_text(), re.DOTALL)
    assert found is not None
    lines = found[1].replace("TeamTestClient(team)", "TeamTestClient(team, database_url=url, folder=folder)")
    scope = {"TeamTestClient": TeamTestClient, "datetime": datetime, "UTC": UTC, "team": nightly.team}
    exec(f"async def shown(url, folder):\n{indent(lines, '    ')}", scope)  # noqa: S102
    await scope["shown"](postgres_url, tmp_path)
    async with TeamTestClient(nightly.team, database_url=postgres_url, folder=tmp_path) as client:
        again = await client.tick("bookkeeper", "night", datetime(2026, 11, 24, 1, 15, tzinfo=UTC))
        events = await client.events(again)
        assert sum(one.packet_type == "MESSAGE" and one.sender == "till" for one in events) <= 1, "fired once"
        with pytest.raises(AgentError, match="bookkeeper has no schedule 'day'; it has night"):
            await client.tick("bookkeeper", "day")
        with pytest.raises(AgentError, match="team nightly has no agent 'clerk'"):
            await client.tick("clerk", "night")
