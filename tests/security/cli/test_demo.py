"""What `apc demo` prints does not act on the terminal, and the folder where it starts does not lead it elsewhere."""

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from apc_bus.settings import BusSettings, DatabaseSettings
from apc_cli.commands import demo_story
from apc_cli.commands.demo_stage import leave_settings
from apc_cli.output import safe_console
from apc_client.session import SessionEvent
from apc_contracts.payloads.by_type import MessagePayload

from .test_terminal_escapes import ACTS, HOSTILE


@pytest.mark.parametrize("is_guarded", [True, False])
def test_what_agents_say_in_the_demo_does_not_act_on_the_terminal(
    is_guarded: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_guarded:
        monkeypatch.setattr(safe_console, "printable", str)
        monkeypatch.setattr(demo_story, "one_line", str)
    packet: Any = SimpleNamespace(
        payload=MessagePayload.model_validate({"schema": "alert/1", "content": {"service": HOSTILE}})
    )
    refusal = {"rule": HOSTILE, "message": HOSTILE, "requires": HOSTILE, "remedy": HOSTILE}
    event = SessionEvent(uuid4(), "MESSAGE", HOSTILE, (HOSTILE,), "refused", None, datetime.now(UTC), packet, refusal)
    story = demo_story.Story()
    story.show(event)
    story.show_postmortem([HOSTILE])
    story.show_done([HOSTILE], [HOSTILE])
    assert bool(ACTS.search(capsys.readouterr().out)) is not is_guarded


@pytest.mark.parametrize("is_guarded", [True, False])
def test_the_folder_of_the_demo_leads_it_nowhere(
    is_guarded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither to the broker of a `.env` or the database of the environment, nor to a module of the name of a team."""
    for name in [name for name in os.environ if name.startswith("APC_")]:
        monkeypatch.setenv(name, os.environ[name])  # given back at the end
    monkeypatch.setenv("APC_DATABASE_URL", "postgresql://production/apc")
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text("APC_AMQP_URL=amqp://production/\n")
    (tmp_path / "room.py").write_text("team = 'of somebody else'")
    if is_guarded:
        leave_settings(over_rabbit=False)
    found = subprocess.run([sys.executable, "-c", "import room"], capture_output=True, check=False)
    is_led = (bool(BusSettings().amqp_nodes), DatabaseSettings().url is not None, found.returncode == 0)
    assert is_led == (not is_guarded,) * 3
    if is_guarded:
        assert BusSettings().data_dir == tmp_path / ".apc"
