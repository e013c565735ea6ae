"""The folder APC_CONTRACTS: its files are registered when a system starts, and sessions begin under them."""

import json
from pathlib import Path

import pytest
from pydantic import SecretStr

from apc_bus.settings import BusSettings, DatabaseSettings
from apc_client.in_process import run_embedded
from apc_contracts.contract.contract import task_contract
from apc_contracts.errors import ContractInvalid, InputUnusable
from apc_log.registry import LoggedContract, read_contracts


def write(path: Path, name: str, kept: int = 128) -> str:
    document = json.loads(task_contract().body) | {"name": name}
    document["loops"]["contents_kept"] = kept
    path.write_text(json.dumps(document))
    return path.read_text()


async def started(url: str, data: Path, folder: Path) -> list[LoggedContract]:
    """Start a system with this folder and end it; return the contracts that are registered then."""
    settings = BusSettings(amqp_url=None, data_dir=data, contracts=str(folder))
    async with run_embedded(settings, DatabaseSettings(database_url=SecretStr(url))) as system:
        return await read_contracts(system.pool)


async def test_its_files_are_registered_when_a_system_starts(postgres_url: str, tmp_path: Path) -> None:
    """Once; another file of a name is its next revision; what is taken out of the folder stays registered."""
    folder = tmp_path / "contracts"
    folder.mkdir()
    first, other = write(folder / "own.json", "own"), write(folder / "other.json", "other")
    both = [LoggedContract("other", 1, other), LoggedContract("own", 1, first)]
    assert await started(postgres_url, tmp_path, folder) == both
    assert await started(postgres_url, tmp_path, folder) == both
    second = write(folder / "own.json", "own", kept=64)
    (folder / "other.json").unlink()
    assert await started(postgres_url, tmp_path, folder) == [both[0], LoggedContract("own", 2, second)]


async def test_a_folder_that_cannot_be_registered_starts_nothing(postgres_url: str, tmp_path: Path) -> None:
    folder = tmp_path / "contracts"
    with pytest.raises(ContractInvalid, match="APC_CONTRACTS is no folder"):
        await started(postgres_url, tmp_path, folder)
    folder.mkdir()
    write(folder / "a.json", "own")
    write(folder / "b.json", "own", kept=64)
    with pytest.raises(InputUnusable, match=r"b\.json: .*a\.json has the name 'own' too: keep one"):
        await started(postgres_url, tmp_path, folder)
    (folder / "b.json").write_text("{")
    with pytest.raises(ContractInvalid, match=r"b\.json"):
        await started(postgres_url, tmp_path, folder)
    (folder / "b.json").unlink()
    assert [one.name for one in await started(postgres_url, tmp_path, folder)] == ["own"], "nothing of it before"
