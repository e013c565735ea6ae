"""The fold reaches the states of the vectors, which the page's fold reaches too."""

from pathlib import Path
from typing import Any

import orjson
import pytest

import apc_web
from apc_web.fold import Folded
from apc_web.models import FoldEntry

VECTORS = orjson.loads((Path(apc_web.__file__).parent / "fold_vectors.json").read_bytes())


@pytest.mark.parametrize("vector", VECTORS, ids=[one["name"] for one in VECTORS])
def test_a_session_after_each_entry(vector: dict[str, Any]) -> None:
    state = Folded()
    for entry, after in zip(vector["entries"], vector["after"], strict=True):
        before = state.copy()
        state.take(FoldEntry.model_validate(entry))

        shown = state.shown("s-1", 0).model_dump(mode="json", exclude={"session_id", "shard"})
        assert shown == after
        before.take(FoldEntry.model_validate(entry))
        assert before == state, "a copy is independent"
