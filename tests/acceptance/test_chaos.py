"""`apc up --chaos`: agents do their work under faults, and a scorecard says what became of each packet."""

import asyncio
import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.support.apc_command import NONE, ApcCommand, Settings
from tests.support.waiting import until

from .chaos_agents import QUESTIONS
from .test_up import up

AGENTS = Path(__file__).with_name("chaos_agents.py")
PROFILE = "seed = 11\n" + "".join(
    f'[[fault]]\nkind = "{kind}"\nchance = {chance}\n{rest}\n'
    for kind, chance, rest in (
        ("drop", 0.1, ""),
        ("delay", 0.1, "ms = [1, 40]"),
        ("duplicate", 0.1, ""),
        ("reorder", 0.1, "ms = [1, 40]"),
        ("corrupt", 0.1, ""),
        ("slow", 0.05, "ms = [1, 10]"),
    )
)


def run_under_chaos(apc: ApcCommand, given: Settings = NONE) -> dict[str, Any]:
    """Return the scorecard of a run that has answered every question."""
    shutil.copy(AGENTS, apc.folder)
    (apc.folder / "chaos.toml").write_text(PROFILE)
    agents = [part for name in ("answerer", "asker") for part in ("--agent", f"chaos_agents:{name}")]
    with up(apc, *agents, "--chaos", "chaos.toml", given=given) as running:
        done = apc.folder / "done"
        asyncio.run(until(lambda: done.exists() or running.poll() is not None, 300, pause_seconds=0.05))
        assert running.poll() is None, running.communicate()[1]
        running.send_signal(signal.SIGTERM)
        printed, said = running.communicate(timeout=90)
    assert running.returncode == 0, said
    scorecard: dict[str, Any] = json.loads(printed)
    assert scorecard == json.loads((apc.folder / ".apc/chaos/scorecard.json").read_bytes())
    return scorecard


def check(scorecard: dict[str, Any]) -> None:
    kinds = {name.partition(" ")[0] for name in scorecard["struck"]}
    assert kinds >= {"drop", "delay", "duplicate", "corrupt"}, "not exercised"
    assert scorecard["lost"] == []
    assert scorecard["confirmed"] >= 2 * QUESTIONS + 1, scorecard
    assert scorecard["verdicts"]["accepted"] >= 2 * QUESTIONS + 1, scorecard
    assert scorecard["set_aside"]["unreadable"] == scorecard["struck"]["corrupt publish"]
    assert sum(scorecard["deliveries"].values()) >= 2 * QUESTIONS
    assert set(scorecard["deliveries"]) == {"ARCHIVED"}, scorecard


@pytest.mark.long
def test_in_one_process(apc: ApcCommand) -> None:
    check(run_under_chaos(apc))


@pytest.mark.long
def test_over_rabbitmq(apc: ApcCommand, amqp_vhost_url: str, postgres_url: str) -> None:
    check(run_under_chaos(apc, {"APC_AMQP_URL": amqp_vhost_url, "APC_DATABASE_URL": postgres_url}))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[[fault]]\nkind = "explode"\nchance = 0.1', "chaos.toml: fault.0.kind: Input should be 'drop'"),
        ("seed =", "chaos.toml is no TOML"),
        (None, "chaos.toml"),
    ],
)
def test_a_profile_that_is_none_starts_nothing(apc: ApcCommand, text: str | None, says: str) -> None:
    if text is not None:
        (apc.folder / "chaos.toml").write_text(text)
    refused = apc("up", "--chaos", "chaos.toml")
    assert refused.returncode == 2 and says in refused.stderr, refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert not (apc.folder / ".apc").exists()
