"""`apc config`: the settings in force."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from apc_bus.secrecy import hide
from apc_bus.settings import SERVICES, all_settings, read_by, variable_of
from apc_cli.output.output import AsJson, print_rows

EVERYBODY = "all"


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting in force."""

    name: str
    value: Any
    is_default: bool
    used_by: str

    def row(self) -> dict[str, Any]:
        """Return one row of `apc config`."""
        return {
            "name": self.name,
            "value": hide(self.value),
            "set_by": "default" if self.is_default else "environment",
            "used_by": self.used_by,
        }


def settings_in_force() -> list[Setting]:
    """Return every setting of every service, by name; a shared one appears once."""
    readers = _readers()
    by_name: dict[str, Setting] = {}
    for kind in all_settings():
        settings = kind()
        for field in kind.model_fields:
            name = variable_of(kind, field)
            is_default = field not in settings.model_fields_set
            by_name[name] = Setting(name, getattr(settings, field), is_default, readers[name])
    return [by_name[name] for name in sorted(by_name)]


def _readers() -> Mapping[str, str]:
    """Return which services read each variable."""
    readers: dict[str, dict[str, None]] = {}
    for reader, kinds in read_by().items():
        for kind in kinds:
            for field in kind.model_fields:
                readers.setdefault(variable_of(kind, field), {})[reader] = None
    return {name: EVERYBODY if SERVICES <= set(users) else ", ".join(users) for name, users in readers.items()}


def config(as_json: AsJson = False) -> None:
    """Print every setting in force with its environment variable; secrets are hidden."""

    rows = [setting.row() for setting in settings_in_force()]
    print_rows(rows, title="Settings in force", as_json=as_json, empty="no settings")
