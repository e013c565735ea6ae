"""What an operator is advised: about an inbox that nobody reads, and where the key of the log is."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from apc_bus.port import QueueDepth
from apc_bus.topology import agent_queue
from apc_cli.commands.log_verification import TrustedKeys
from apc_cli.doctor.agents import OPERATOR_FIX, _finding_of, _idle
from apc_cli.errors import LogKeyElsewhere


def _row(**changes: Any) -> dict[str, Any]:
    row = {"agent_id": "operator", "handles": [], "rights": ["operate"], "is_alive": False, "last_seen": None}
    return row | changes


def test_an_operator_with_packets_in_its_inbox_is_not_to_be_revoked_at_once() -> None:
    depths = {agent_queue("operator", urgent): QueueDepth(3, 0) for urgent in (True, False)}
    idle = _idle(_row(), depths, datetime.now(UTC))
    assert idle is not None
    finding = _finding_of(idle)
    assert finding.fix == OPERATOR_FIX
    assert finding.finding == "operator: may operate and handles nothing, so nobody reads its inbox; 6 packets wait"
    worker = _idle(_row(agent_id="operator", handles=["IDEA"]), depths, datetime.now(UTC))
    assert worker is not None and _finding_of(worker).fix.startswith("start its worker")
    assert _idle(_row(agent_id="client-operator"), {}, datetime.now(UTC)) is None, "a client has no inbox"


def test_who_has_no_key_of_the_log_is_sent_to_the_log_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own remedy, a new key, would make every checkpoint wrong."""
    for name in ("APC_LOG_KEY", "APC_LOG_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("APC_DATA_DIR", str(tmp_path))
    with pytest.raises(LogKeyElsewhere) as raised:
        TrustedKeys(()).of(0)
    said = str(raised.value)
    assert "docker compose exec persister apc log verify" in said and "--key" in said and "--create" not in said
    assert raised.value.exit_code == 2
