"""The option `--person` of `apc up` and `apc run`."""

from collections.abc import Sequence

import typer


def people_of(given: Sequence[str]) -> dict[str, str]:
    """Return the role of each person by name. Raises BadParameter for what is not NAME:ROLE, or a name given twice."""
    people = dict[str, str]()
    for one in given:
        name, colon, role = one.partition(":")
        if not (name and colon and role) or name in people:
            raise typer.BadParameter(f"{one!r}: write NAME:ROLE, each name once", param_hint="--person")
        people[name] = role
    return people
