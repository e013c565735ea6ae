"""What people find a run by: its id, and the tags that it is given at its start."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from pydantic import JsonValue

from apc_contracts.contract_model import ID_PATTERN
from apc_contracts.errors import InputUnusable
from apc_contracts.limits import MAX_SAFE_INTEGER

TagValue = str | int | float | bool
MOST_TAGS = 31
"""Tags of a run; the team's name stands beside them."""
_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
_LONGEST_TAG = 200


@dataclass(frozen=True, slots=True)
class RunNames:
    """What a run is found by: its id, None = that of its session, and its tags; beside them what its input carries."""

    run_id: str | None = None
    tags: Mapping[str, TagValue] = field(default_factory=dict)
    attached: Mapping[str, JsonValue] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        run_id: str | None,
        metadata: Mapping[str, TagValue] | None,
        attached: Mapping[str, JsonValue] | None = None,
    ) -> Self:
        """Return the names, once checked. Raises InputUnusable for one that cannot be used, with the reason."""
        if run_id is not None and not re.fullmatch(ID_PATTERN, run_id):
            raise InputUnusable(
                f"the run's id {run_id[:80]!r} cannot be used: at most 64 letters, digits and . _ : -, a letter or "
                "digit first"
            )
        tags = dict(metadata or {})
        if len(tags) > MOST_TAGS:
            raise InputUnusable(f"a run has at most {MOST_TAGS} tags (got {len(tags)})")
        for key, value in tags.items():
            _check_tag(key, value)
        kept = dict(attached or {})
        for key in kept:
            if key in tags or key == "team":
                raise InputUnusable(f"attached has {key!r}, which is the name of a tag: choose another key")
        return cls(run_id, tags, kept)

    def in_run(self, run_id: str) -> Self:
        """Return the same tags in another run: that of a session which was opened before."""
        return replace(self, run_id=run_id)


def _check_tag(key: str, value: TagValue) -> None:
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        shown = str(key)[:80]
        raise InputUnusable(f"the tag {shown!r} cannot be used: at most 64 letters, digits and . _ -, a letter first")
    if key == "team":
        raise InputUnusable("the tag 'team' is the team's own name: choose another key")
    match value:
        case str():
            is_usable = 0 < len(value) <= _LONGEST_TAG and value.isprintable()
        case int() | float():
            is_usable = math.isfinite(value) and abs(value) <= MAX_SAFE_INTEGER
        case _:
            is_usable = False
    if not is_usable:
        said = f"a text of at most {_LONGEST_TAG} characters in one line, a number or a boolean"
        raise InputUnusable(f"the value of tag {key} cannot be used: give {said}")
