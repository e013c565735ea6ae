"""The contracts that a gate can judge by: the default, the packaged ones, those of a folder and of the registry."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from apc_contracts.contract.contract import (
    Contract,
    check_deployment,
    check_guards,
    contract_from_bytes,
    deployed_contract,
    load_contract,
    read_contract_folder,
    task_contract,
)
from apc_contracts.contract.file import Limits
from apc_contracts.errors import ContractInvalid

DEPLOYMENT_WIDE = (
    "packet_bytes nesting_levels nodes clock_skew_ms outstanding_deliveries quota refused retry_after_ms".split()
)
"""Limits that only the default contract sets."""
MAX_REGISTERED = 100
"""Names of registered contracts: an orchestrator keeps the newest revision of each."""


class Contracts:
    """Contracts by name and by hash. `default` judges what names no contract, and holds the deployment's limits."""

    def __init__(self, default: Contract, others: Iterable[Contract] = ()) -> None:
        self.default = default
        self._by_name: dict[str, Contract] = {}
        self._by_hash: dict[str, Contract] = {}
        self._revisions: dict[str, int] = {}
        # The default first: its file may be among the others, and keeps its own limits.
        self.keep(default)
        for contract in (*others, default):
            self._by_name[contract.name] = self.keep(contract)

    def named(self, name: str) -> Contract | None:
        """Return the contract that a START names; None when there is none."""
        return self._by_name.get(name)

    def of_hash(self, digest: str) -> Contract | None:
        """Return the contract with this SHA-256 in hex; None when it was not loaded."""
        return self._by_hash.get(digest)

    def keep(self, contract: Contract) -> Contract:
        """Keep a contract by its hash, for the sessions that it opens; return it with the deployment's limits."""
        digest = contract.hash.hex()
        if digest in self._by_hash:
            return self._by_hash[digest]
        kept = contract if contract is self.default else replace(contract, limits=self._deployed(contract.limits))
        self._by_hash[digest] = kept
        return kept

    def copy(self) -> "Contracts":
        """Return a collection that can be registered in without changing this one."""
        made = Contracts(self.default, self._by_name.values())
        made._by_hash.update(self._by_hash)
        made._revisions.update(self._revisions)
        return made

    def register(self, contract: Contract, revision: int) -> None:
        """Let sessions that begin from now on find this contract by its name, unless a later revision is there.

        The deployment's default keeps its name.
        """
        if self.count(contract.name, revision) and contract.name != self.default.name:
            self._by_name[contract.name] = self.keep(contract)

    def count(self, name: str, revision: int) -> bool:
        """Note that a revision is registered, also when nobody can judge by it; return whether it is the newest."""
        is_newest = revision > self._revisions.get(name, 0)
        if is_newest:
            self._revisions[name] = revision
        return is_newest

    def objection(self, contract: Contract, revision: int, *, decides: bool) -> str | None:
        """Return why a contract cannot be registered, None when it can; `decides` = by shard 0, which orders revisions.

        Raises:
            ContractInvalid: a guard, a state or a metric of it cannot be used; names the place.
        """
        name, known = contract.name, self._revisions.get(contract.name, 0)
        if name == self.default.name:
            return f"{name} is the deployment's default contract: give the file another name, or set APC_CONTRACT"
        if not known and len(self._revisions) >= MAX_REGISTERED:
            return f"{MAX_REGISTERED} contracts are registered: no room for {name}"
        if revision == known:
            current = self._by_name.get(name)
            is_same = current is not None and current.hash == contract.hash
            return None if is_same else f"revision {revision} of contract {name} is taken: repeat"
        if decides and revision != known + 1:
            return f"the next revision of contract {name} is {known + 1}, not {revision}: repeat the command"
        check_deployment(contract)
        return None

    def _deployed(self, limits: Limits) -> Limits:
        """Return limits whose deployment-wide ones are the default's."""
        return limits.model_copy(update={name: getattr(self.default.limits, name) for name in DEPLOYMENT_WIDE})

    @property
    def names(self) -> tuple[str, ...]:
        """The names that a START may give, sorted."""
        return tuple(sorted(self._by_name))


def load_contracts(default: Path | str | None = None, folder: Path | str | None = None) -> Contracts:
    """Return the default contract, the packaged ones and the folder's `*.json`; a file replaces a packaged name.

    Raises:
        ContractInvalid: a file cannot be used, or two files have the same name.
    """
    first = load_contract(default)
    packaged = (load_contract(), task_contract())
    files: dict[str, tuple[Contract, Path]] = {}
    for path, body in [] if folder is None else read_contract_folder(Path(folder)):
        contract = deployed_contract(body, path)
        if contract.name in files:
            raise ContractInvalid("name", f"{files[contract.name][1]} has the name {contract.name!r} too", str(path))
        files[contract.name] = contract, path
    contracts = Contracts(first, (*packaged, *(contract for contract, _ in files.values())))
    for name in contracts.names:
        contract_of_name = contracts.named(name)
        assert contract_of_name is not None
        # Compile now: the first packet must not wait for it.
        check_guards(contract_of_name)
    return contracts


def stored_contract(body: bytes) -> Contract | None:
    """Return the contract that the log stores; None when this version cannot judge by it any more."""
    try:
        return contract_from_bytes(body)
    except ContractInvalid:
        return None
