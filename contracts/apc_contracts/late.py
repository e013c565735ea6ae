"""Names that a package exports and imports when they are first used.

The package's `__init__` imports them under TYPE_CHECKING, for who reads types, and names them here again, by module:
a program that needs none of them does not load what they need.
"""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def late_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a package's `__getattr__` (PEP 562), which imports a name when it is first used.

    It must stand under `if not TYPE_CHECKING`: a type checker would take every misspelled name for one that exists.

    Args:
        package: `__name__` of the package.
        modules: names, separated by spaces, by the module that defines them.
    """
    places = {name: module for module, names in modules.items() for name in names.split()}

    def __getattr__(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(places[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return __getattr__
