"""The guide of timers: its code can be imported as it stands, and its handlers do what the page says."""

import importlib
import re
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

import pytest

from apc_agents import AgentTestClient
from apc_contracts import CommitmentLevel, DecisionPayload, SignalPayload
from apc_contracts.payloads.session_signals import WakeSpec
from apc_contracts.vocabulary import ORCHESTRATOR, Signal

PAGE = Path(__file__).parents[2] / "docs/how-to/timers.md"


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "timers_of_the_page.py").write_text("\n\n".join(blocks))
    monkeypatch.syspath_prepend(tmp_path)
    return importlib.import_module("timers_of_the_page")


async def test_a_timer_of_the_page_is_set_again(page: ModuleType) -> None:
    due = SignalPayload(signal=Signal.WAKE, wake=WakeSpec(key="remind", at=datetime.now(UTC)))
    async with AgentTestClient(page.agent) as client:
        again = await client.send(due, sender=ORCHESTRATOR)
    assert again is not None
    assert again.payload_as(SignalPayload).wake == WakeSpec(key="remind", after_ms=14_400_000)


async def test_a_tick_of_the_page_is_handled(page: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    async with AgentTestClient(page.clerk) as client:
        done = await client.tick("report", datetime(2026, 3, 2, 6, tzinfo=UTC))
    assert done is not None
    assert done.payload_as(DecisionPayload).commitment_level is CommitmentLevel.DONE
    assert "report of 02 March" in capsys.readouterr().out
