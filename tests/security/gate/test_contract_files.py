"""Somebody who may write into the folder APC_CONTRACTS makes `apc up` read what it should not, or without end."""

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from apc_contracts.contract import contract
from apc_contracts.contract.collection import load_contracts
from apc_contracts.contract.contract import packaged_contract_bytes
from apc_contracts.errors import ContractInvalid
from apc_log.batch import encode
from apc_orchestrator import batch as batches
from apc_orchestrator.batch import Batch

CONTRACT = packaged_contract_bytes().replace(b'"name": "apc-1.0"', b'"name": "theirs"', 1)
LARGEST_MESSAGE = 2 << 20
"""What the broker takes by our configuration (`max_message_size`)."""


def link_that_leads_out(folder: Path) -> object:
    (folder / "a.json").symlink_to("../theirs.json")
    return (folder.parent / "theirs.json").write_bytes(CONTRACT)


def pipe(folder: Path) -> object:
    """Anyone who opens it waits for its writer."""
    os.mkfifo(folder / "a.json")
    end = os.open(folder / "a.json", os.O_RDWR)
    os.write(end, CONTRACT)
    return end


def large_file(folder: Path) -> object:
    return (folder / "a.json").write_bytes(CONTRACT + b" " * contract.MAX_BYTES)


def many_files(folder: Path) -> object:
    return [(folder / f"{at}.json").write_bytes(CONTRACT.replace(b'"theirs"', b'"theirs-%d"' % at)) for at in range(3)]


Act = Callable[[Path], object]
Guard = tuple[Any, str, Any]
ACTS: dict[Act, tuple[Guard, str]] = {
    link_that_leads_out: ((Path, "is_relative_to", lambda *_: True), "it is a link that leads out of the folder"),
    pipe: ((contract, "S_ISREG", lambda _: True), "it is no file"),
    large_file: ((contract, "MAX_BYTES", 1 << 30), "it has more than 262144 bytes"),
    many_files: ((contract, "MAX_FILES", 1 << 30), "it has 3 files, 2 are allowed"),
}
"""Act -> what takes its guard away, and what the guard says."""


@pytest.mark.parametrize("is_guarded", [False, True])
@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
def test_a_hostile_folder_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, act: Act, is_guarded: bool
) -> None:
    (folder := tmp_path / "contracts").mkdir()
    made = act(folder)
    guard, said = ACTS[act]
    try:
        if is_guarded:
            monkeypatch.setattr(contract, "MAX_FILES", 2)
            with pytest.raises(ContractInvalid, match=said):
                load_contracts(folder=folder)
            return
        monkeypatch.setattr(*guard)
        assert any(name.startswith("theirs") for name in load_contracts(folder=folder).names)
    finally:
        if isinstance(made, int) and act is pipe:
            os.close(made)


def test_links_within_the_folder_are_followed(tmp_path: Path) -> None:
    """So Kubernetes mounts a ConfigMap."""
    (data := tmp_path / "..2026_11_25").mkdir()
    (data / "a.json").write_bytes(CONTRACT)
    (tmp_path / "..data").symlink_to(data.name)
    (tmp_path / "a.json").symlink_to("..data/a.json")
    assert "theirs" in load_contracts(folder=tmp_path).names


@pytest.mark.parametrize("name", ["loop", "nowhere"])
def test_links_to_nothing_are_told(tmp_path: Path, name: str) -> None:
    (tmp_path / "loop.json").symlink_to("loop.json" if name == "loop" else "gone")
    with pytest.raises(ContractInvalid, match="cannot read it"):
        load_contracts(folder=tmp_path)


@pytest.mark.parametrize("is_guarded", [False, True])
def test_a_batch_is_full_of_the_contracts_that_it_carries(monkeypatch: pytest.MonkeyPatch, is_guarded: bool) -> None:
    """STARTs of one batch that each name another large contract."""
    if not is_guarded:
        monkeypatch.setattr(batches, "FULL_BYTES", 1 << 40)
    batch = Batch(1, datetime.now(UTC))
    for number in range(20):
        if not batch.is_full():
            batch.contracts.add(bytes([number]) * contract.MAX_BYTES)
    assert (len(encode(batch.seal(0, 1))) < LARGEST_MESSAGE) is is_guarded
