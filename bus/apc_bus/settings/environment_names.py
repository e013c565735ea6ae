"""Names of the environment that begin like ours and are no settings: misspelled ones are refused, others told."""

import re
from collections.abc import Iterable, Mapping
from difflib import SequenceMatcher, get_close_matches

from apc_bus.errors import SettingMisspelled
from apc_bus.settings.services import all_settings
from apc_bus.settings.setting_sources import PREFIX, variable_of

NO_SETTINGS = frozenset({"APC_CRASH_AT", "APC_IMAGE"})
"""Names of ours that are no settings: read before the settings, or by the compose file."""
OF_TESTS = ("APC_TEST_", "APC_WRITE_", "APC_TAMPERINGS")
MISSPELLED = 0.85
"""From this share of equal characters on, an unknown name is a misspelled setting."""
_OF_KUBERNETES = re.compile(r"_SERVICE_(HOST|PORT)(_|$)|_PORT_\d+_(TCP|UDP|SCTP)")
"""What Kubernetes sets for each service of a namespace, beside NAME_PORT=tcp://…"""
_ADDRESS = re.compile(r"^(tcp|udp|sctp)://")


def check_names(environment: Mapping[str, str]) -> list[str]:
    """Return a sentence for each unknown name with our prefix.

    Raises:
        SettingMisspelled: one of them is nearly the name of a setting.
    """
    known = known_names()
    unknown = sorted(name for name, value in environment.items() if _is_unknown(name, value, known))
    for name in unknown:
        meant = _nearest(name, known)
        if meant is not None and _likeness(name, meant) >= MISSPELLED:
            raise SettingMisspelled(name, meant)
    return [_sentence(name, known) for name in unknown]


def known_names() -> frozenset[str]:
    """Return every name that is a setting, or that we read otherwise."""
    return frozenset(variable_of(kind, field) for kind in all_settings() for field in kind.model_fields) | NO_SETTINGS


def _is_unknown(name: str, value: str, known: frozenset[str]) -> bool:
    if not name.startswith(PREFIX) or name in known or name.startswith(OF_TESTS):
        return False
    return not (_OF_KUBERNETES.search(name) or (name.endswith("_PORT") and _ADDRESS.match(value)))


def _sentence(name: str, known: Iterable[str]) -> str:
    shortened = [one for one in known if name.startswith(f"{one}_")]
    meant = max(shortened, key=len) if shortened else _nearest(name, known)
    return f"{name} is no setting and is ignored" + (f": do you mean {meant}?" if meant else "")


def _nearest(name: str, known: Iterable[str]) -> str | None:
    found = get_close_matches(name.removeprefix(PREFIX).upper(), [one.removeprefix(PREFIX) for one in known], n=1)
    return f"{PREFIX}{found[0]}" if found else None


def _likeness(name: str, other: str) -> float:
    return SequenceMatcher(None, name.removeprefix(PREFIX).upper(), other.removeprefix(PREFIX)).ratio()
