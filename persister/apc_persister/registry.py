"""Changes of the registry: what the log takes in must be readable, because view `agents` follows from it."""

from collections.abc import Iterable

from apc_contracts.errors import PacketRefused
from apc_log.batch import RegistryEntry
from apc_log.table_rows import Placed
from apc_persister.writing.conflicts import UNSTORABLE, unstorable


def check_changes(placed: Iterable[Placed]) -> None:
    """Raise ValueError when one of these entries is a change that breaks the contract."""
    for item in placed:
        if isinstance(item.entry, RegistryEntry):
            _check(item.entry)


def with_checked_changes(placed: Iterable[Placed]) -> list[Placed]:
    """Return the entries; a change that breaks the contract becomes a conflict at its place."""
    return [_checked(item) for item in placed]


def _checked(item: Placed) -> Placed:
    if isinstance(item.entry, RegistryEntry):
        try:
            _check(item.entry)
        except ValueError as error:
            return item._replace(entry=unstorable(item.entry, UNSTORABLE, error))
    return item


def _check(entry: RegistryEntry) -> None:
    # Rare, and the models of the contract take a while to import.
    from apc_contracts.identity.registry_change import parse_registry_change

    try:
        change = parse_registry_change(entry.change)
    except PacketRefused as error:
        raise ValueError(str(error)) from error
    if (change.change_id, change.subject) != (entry.change_id, entry.agent_id):
        raise ValueError("the change names another agent or another change than its entry")
