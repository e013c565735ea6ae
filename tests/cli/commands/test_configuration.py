"""What the console makes of the settings: all of them in `apc config`, one sentence of each mistake."""

import json
from importlib.resources import files
from pathlib import Path

import pytest
from pydantic import ValidationError
from tests.support.apc_command import ApcCommand

from apc_bus.rabbit import export_definitions
from apc_bus.settings import ApcSettings, BusSettings, LLMSettings, all_settings, variable_of
from apc_bus.topology import AgentQueues, agent_queue
from apc_cli.commands.config import settings_in_force
from apc_cli.output.output import sentence_of
from apc_client.registration import topology_of
from apc_contracts.contract.contract import PACKAGED_CONTRACT, load_contract


def test_every_setting_is_shown_once() -> None:
    shown = [setting.name for setting in settings_in_force()]

    assert shown == sorted({variable_of(kind, field) for kind in all_settings() for field in kind.model_fields})


def test_it_is_shown_who_reads_a_setting() -> None:
    users = {setting.name: setting.used_by for setting in settings_in_force()}

    assert users["APC_SHARDS"] == users["APC_HEARTBEAT"] == "all"
    assert users["APC_SUBJECT_MASTER_KEY"] == "orchestrator, persister, console"
    assert users["APC_CONTEXT_RECENT_TOKENS"] == users["APC_RELEVANCE_HISTORY"] == "agents"


@pytest.mark.parametrize(
    ("kind", "name", "value", "sentence"),
    [
        (BusSettings, "APC_HEARTBEAT", "90", "APC_HEARTBEAT must be between 1 and 60 seconds (got 90)"),
        (BusSettings, "APC_SHARDS", "0", "APC_SHARDS: Input should be greater than or equal to 1"),
        (LLMSettings, "APC_LLM_MAX_STEPS", "0", "APC_LLM_MAX_STEPS: Input should be greater than or equal to 1"),
    ],
)
def test_a_mistake_is_one_sentence_with_its_variable(
    monkeypatch: pytest.MonkeyPatch, kind: type[ApcSettings], name: str, value: str, sentence: str
) -> None:
    monkeypatch.setenv(name, value)

    with pytest.raises(ValidationError) as caught:
        kind()

    assert sentence_of(caught.value) == sentence


def test_the_contract_says_how_much_an_inbox_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APC_OUTSTANDING_BOUND", "1000")
    content = json.loads((files("apc_contracts") / PACKAGED_CONTRACT).read_text())
    content["limits"]["outstanding_deliveries"] = 5
    path = tmp_path / "contract.json"
    path.write_text(json.dumps(content))

    topology = topology_of(BusSettings(contract=str(path)), [AgentQueues("a", "s")])

    definitions = export_definitions(topology)
    sizes = {queue["name"]: queue["arguments"].get("x-max-length") for queue in definitions["queues"]}
    assert sizes[agent_queue("a", urgent=True)] == sizes[agent_queue("a", urgent=False)] == 10


def test_the_packaged_contract_says_it_by_default() -> None:
    inboxes = [queue for queue in topology_of(BusSettings(), [AgentQueues("a", "s")]).queues if ".a." in queue.name]

    assert {queue.max_messages for queue in inboxes} == {2 * load_contract().limits.outstanding_deliveries}


def test_every_command_refuses_a_misspelled_setting_and_tells_of_others(apc: ApcCommand) -> None:
    refused = apc("contract", "walk", "packet_lifecycle", "emit", given={"APC_SHARD": "2"})
    assert refused.returncode == 2
    assert refused.stderr == "apc: APC_SHARD is no setting: do you mean APC_SHARDS? Correct it, or unset APC_SHARD\n"
    told = apc("contract", "walk", "packet_lifecycle", "emit", given={"APC_ZZ": "2"})
    assert (told.returncode, told.stderr) == (0, "apc: APC_ZZ is no setting and is ignored\n")
