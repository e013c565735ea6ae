"""What the README shows, runs: its team, its rule, its commands, and the words of a refusal."""

import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.apc_command import ApcCommand

from apc_agents import EmitRefused
from apc_client import SessionHalted, TeamTestClient

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = {language: text for language, text in re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)}
"""One block of each language."""


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with both files of the README."""
    (tmp_path / "refunds.py").write_text(BLOCKS["python"])
    (tmp_path / "refunds.yml").write_text(BLOCKS["yaml"])
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("refunds", None)


def test_make_setup_says_first_what_it_costs() -> None:
    command = ["make", "--dry-run", "--always-make", "setup"]
    planned = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert 0 < planned.index("installing") < planned.index("pip install")
    assert re.search(r"seconds .*\d GB on disk", planned) is not None


def test_the_team_is_short() -> None:
    assert len([line for line in BLOCKS["python"].splitlines() if line.strip()]) <= 25


def test_what_comes_first_needs_no_glossary() -> None:
    first = re.sub(r"```.*?```", "", README.partition("## See it")[0], flags=re.DOTALL)
    words = (
        "packet",
        "persister",
        "shard",
        "swarm",
        "epoch",
        "lineage",
        "orchestrator",
        "topology",
        "admit",
        "substrate",
    )
    assert [word for word in words if re.search(rf"\b{word}s?\b", first, re.IGNORECASE)] == []


async def test_the_team_pays_by_its_rule(written: Path, postgres_url: str, tmp_path: Path) -> None:
    shop: Any = importlib.import_module("refunds")
    people = {"ida": "lead"}
    async with TeamTestClient(shop.team, people=people, database_url=postgres_url, folder=tmp_path / "data") as client:
        assert await client.run(shop.Complaint(order="A-17", euros=20)) == shop.Receipt(paid=20)
        for approved, paid in ((True, 120), (False, 50)):
            session = await client.start(shop.Complaint(order="A-17", euros=120))
            await client.answer(session, approved=approved)
            assert await session.result(timeout=30) == shop.Receipt(paid=paid)


async def test_a_clerk_that_asks_nobody_is_refused_in_the_words_of_the_readme(
    written: Path, postgres_url: str, tmp_path: Path
) -> None:
    assert "if refund.euros > 50:" in BLOCKS["python"]
    (written / "refunds.py").write_text(BLOCKS["python"].replace("if refund.euros > 50:", "if refund.euros > 5000:"))
    shop: Any = importlib.import_module("refunds")
    async with TeamTestClient(shop.team, database_url=postgres_url, folder=tmp_path / "data") as client:
        session = await client.start(shop.Complaint(order="A-17", euros=120))
        with pytest.raises(SessionHalted, match="HANDLER_FAILED"):
            await session.result(timeout=30)
        events = await client.events(session)
    assert [one for one in events if one.sender == "cashier"] == []
    (refused,) = [EmitRefused.of(one.refusal) for one in events if one.refusal is not None]
    assert str(refused) == BLOCKS["text"].strip()


@pytest.mark.long
def test_the_commands_of_the_readme_run(apc: ApcCommand) -> None:
    (apc.folder / "refunds.py").write_text(BLOCKS["python"])
    (apc.folder / "refunds.yml").write_text(BLOCKS["yaml"])
    shown, command = BLOCKS["bash"].splitlines()
    text, _, name = shown.removeprefix("echo '").partition("' > ")
    (apc.folder / name).write_text(text)
    done = apc(*command.split()[1:], stdin="y\n")
    assert done.returncode == 0, done.stderr
    about = {"schema": "refund/1", "content": {"euros": 120, "order": "A-17"}}
    assert f"ida is asked by clerk: Pay this?\nabout: {json.dumps(about, separators=(',', ':'))}\n" in done.stderr
    assert json.loads(done.stdout)["result"]["content"] == {"paid": 120}
