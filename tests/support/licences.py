"""Licences of everything that apc-bus installs with all extras that run: its direct and indirect dependencies."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

EXTRAS = ("server", "embedded", "automl", "otel", "llm", "langgraph", "openai-agents", "a2a", "mcp")
"""Extras of a running system; `dev` and `docs` install tools that are never shipped."""
ALLOWED = frozenset({
    "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "CNRI-Python", "ISC", "MIT", "MIT-0", "MIT-CMU",
    "MPL-2.0", "PSF-2.0", "Unlicense", "Zlib",
})  # fmt: skip
"""SPDX names. MPL-2.0 binds changes of the licensed files alone, and we change none."""
WRITTEN = {
    "Apache": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "Apache License, Version 2.0": "Apache-2.0",
    "3-Clause BSD License": "BSD-3-Clause",
    "BSD": "BSD-3-Clause",
    "BSD License": "BSD-3-Clause",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "The Unlicense (Unlicense)": "Unlicense",
}
"""How older packages write it, as classifier or field -> SPDX."""
READ_BY_HAND = {"skops": "MIT"}
"""Packages that name none where a program finds it; read from the licence file that they carry."""


@dataclass(frozen=True, slots=True)
class Licence:
    """A dependency as installed, and its licence as an SPDX expression, as far as it says one."""

    name: str
    version: str
    licence: str


def read_licences(root: str = "apc-bus", extras: Iterable[str] = EXTRAS) -> list[Licence]:
    """Return the licence of every installed dependency, direct or not, sorted by name."""
    found: dict[str, Licence] = {}
    waiting = [(root, frozenset(extras))]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        name, wanted = place = waiting.pop()
        if place in seen:
            continue
        seen.add(place)
        try:
            one = distribution(name)
        except PackageNotFoundError:  # not for this platform or interpreter
            continue
        if name != root:
            found[name] = Licence(name, one.version, licence_of(one))
        for line in one.requires or ():
            needed = Requirement(line)
            given = [{"extra": extra} for extra in (*wanted, "")]
            if needed.marker is None or any(needed.marker.evaluate(extra) for extra in given):
                waiting.append((canonicalize_name(needed.name), frozenset(needed.extras)))
    return sorted(found.values(), key=lambda licence: licence.name)


def licence_of(one: Distribution) -> str:
    """Return the SPDX expression, else what the classifiers say, else the first line of the field; '' without any."""
    data = one.metadata
    if expression := data.json.get("license_expression"):
        return str(expression)
    name = canonicalize_name(data["Name"])
    if name in READ_BY_HAND:
        return READ_BY_HAND[name]
    classifiers = [
        line.rpartition(" :: ")[2]
        for line in data.get_all("Classifier", ())
        if line.startswith("License ::") and not line.endswith(("OSI Approved", "DFSG approved"))
    ]
    said = classifiers or str(data.json.get("license", "")).strip().splitlines()[:1]
    return " AND ".join(sorted(WRITTEN.get(one, one) for one in said))


def unknown_licences(licences: Sequence[Licence]) -> list[Licence]:
    """Return those with a term that is not allowed, or none at all."""
    return [one for one in licences if not (terms := terms_of(one.licence)) or not terms <= ALLOWED]


def terms_of(expression: str) -> set[str]:
    """Return the names in an SPDX expression. Of alternatives all must be allowed: stricter than needed, and simple."""
    return {term for term in re.split(r"\s+(?:AND|OR|WITH)\s+|[()]", expression) if term.strip()}
