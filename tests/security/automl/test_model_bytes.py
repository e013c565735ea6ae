"""A builder puts bytes under a hash that run a command where they are loaded: they are refused unbuilt."""

import io
import json
import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
import skops.io
from skops.io._audit import NODE_TYPE_MAPPING
from skops.io.exceptions import UntrustedTypesFoundException

from apc_automl.errors import ModelFileRefused
from apc_automl.model import model_file
from apc_automl.model.model_file import load_model
from apc_automl.model.model_types import FORMAT, SCHEMA, TRUSTED

NUMERIC_MODULES = (
    ("sklearn._loss.loss", "np._pytesttester.os.system"),
    ("sklearn.ensemble._hist_gradient_boosting.binning", "np._pytesttester.os.system"),
    ("sklearn.tree._tree", "np._pytesttester.os.system"),
    ("sklearn.neighbors._kd_tree", "np._pytesttester.os.system"),
    ("sklearn.metrics._dist_metrics", "np._pytesttester.os.system"),
)
"""Modules of numbers only, and a dotted name that leads from there to the shell."""


def pickled_call(module: str, name: str, command: str) -> bytes:
    """Return a pickle of protocol 5 that calls a global with one text."""
    texts = (b"\x8c" + struct.pack("<B", len(one)) + one for one in (module.encode(), name.encode()))
    argument = b"X" + struct.pack("<I", len(command.encode())) + command.encode()
    return b"\x80\x05" + b"".join(texts) + b"\x93" + argument + b"\x85R."


def zipped(schema: dict[str, Any], **entries: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr(SCHEMA, json.dumps({"protocol": FORMAT, "_skops_version": skops.__version__} | schema))
        for name, data in entries.items():
            file.writestr(name, data)
    return buffer.getvalue()


def node(loader: str, module: str, name: str, **rest: Any) -> dict[str, Any]:
    return {"__loader__": loader, "__module__": module, "__class__": name, **rest}


def text(value: Any) -> dict[str, Any]:
    return node("JsonNode", "builtins", "str", content=json.dumps(value), is_json=True)


def call_of(command: str) -> dict[str, Any]:
    """Return a skops tree that calls os.system: a type whose constructor is that function."""
    arguments = node("TupleNode", "builtins", "tuple", content=[text(command)])
    return node("ConstructorFromReduceNode", "os", "system", content=arguments)


def asked_without_the_guard(loader: str, data: bytes) -> bool:
    """Return whether skops hands a node to this loader when no list of ours stands before it."""
    asked = []

    def note(state: dict[str, Any], *_: Any, **__: Any) -> None:
        asked.append(state["__loader__"])
        raise ValueError("this is as far as it goes")

    with pytest.MonkeyPatch.context() as unguarded:
        unguarded.setitem(NODE_TYPE_MAPPING, (loader, FORMAT), note)
        with pytest.raises(ModelFileRefused, match="which no model of ours needs"):
            load_model(data)
        assert not asked, "with the guard it is never asked"
        unguarded.setattr(model_file, "refusal_of_file", lambda _: None)
        with pytest.raises(ModelFileRefused, match="as far as it goes"):
            load_model(data)
    return asked == [loader]


@pytest.mark.parametrize(("module", "name"), NUMERIC_MODULES)
def test_a_pickle_with_a_dotted_name_runs_a_command_only_without_the_guard(
    module: str, name: str, tmp_path: Path
) -> None:
    unguarded, guarded = tmp_path / "unguarded", tmp_path / "guarded"
    pickle.loads(pickled_call(module, name, f"touch {unguarded}"))
    assert unguarded.exists()
    with pytest.raises(ModelFileRefused, match="no model file"):
        load_model(pickled_call(module, name, f"touch {guarded}"))
    assert not guarded.exists()


def test_a_tree_that_calls_a_function_runs_it_only_without_the_guard(tmp_path: Path) -> None:
    unguarded, guarded = tmp_path / "unguarded", tmp_path / "guarded"
    skops.io.loads(zipped(call_of(f"touch {unguarded}")), trusted=["os.system"])
    assert unguarded.exists()
    with pytest.raises(ModelFileRefused, match=r"names os\.system \(ConstructorFromReduceNode\)"):
        load_model(zipped(call_of(f"touch {guarded}")))
    assert not guarded.exists()


def test_a_hostile_node_is_found_however_deep_it_stands(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    for depth in range(1, 4):
        tree = call_of(f"touch {marker}")
        for _ in range(depth):
            inner = node("ListNode", "builtins", "list", content=[tree])
            tree = node(
                "DictNode",
                "builtins",
                "dict",
                content={"key": inner},
                key_types=node("ListNode", "builtins", "list", content=[node("TypeNode", "builtins", "str")]),
            )
        with pytest.raises(ModelFileRefused, match=r"os\.system"):
            load_model(zipped(tree))
        assert not marker.exists()
        skops.io.loads(zipped(tree), trusted=["os.system"])
        assert marker.exists(), "without the guard it is run at this depth"
        marker.unlink()


def test_types_that_skops_trusts_and_no_model_needs_are_refused() -> None:
    tree = node("TypeNode", "builtins", "map")
    assert skops.io.loads(zipped(tree)) is map
    with pytest.raises(ModelFileRefused, match=r"builtins\.map"):
        load_model(zipped(tree))


def test_every_loader_that_no_model_needs_is_refused() -> None:
    others = {loader for loader, _ in NODE_TYPE_MAPPING} - set(TRUSTED)
    assert {"MethodNode", "PartialNode", "OperatorFuncNode", "ConstructorFromReduceNode", "CachedNode"} <= others
    for loader in others:
        bytes_ = zipped(node(loader, "builtins", "str"))
        assert asked_without_the_guard(loader, bytes_), loader
        with pytest.raises(ModelFileRefused, match=loader):
            load_model(bytes_)


def test_a_trusted_loader_builds_no_type_of_another() -> None:
    for loader, names in TRUSTED.items():
        assert "os.system" not in names
        bytes_ = zipped(node(loader, "os", "system"))
        assert asked_without_the_guard(loader, bytes_), loader
        with pytest.raises(ModelFileRefused, match=r"os\.system"):
            load_model(bytes_)
    for loader in ("TypeNode", "FunctionNode"):
        assert skops.io.loads(zipped(node(loader, "os", "system")), trusted=["os.system"]) is os.system


def test_older_formats_have_older_loaders_and_are_refused() -> None:
    old = zipped(text("a") | {"protocol": 0})
    assert skops.io.loads(old) == "a", "skops itself reads it"
    with pytest.raises(ModelFileRefused, match="format 0"):
        load_model(old)


def test_a_compressed_entry_is_refused_before_it_grows() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(SCHEMA, json.dumps(text("a") | {"protocol": FORMAT}).ljust(10_000_000))
    assert len(buffer.getvalue()) < 100_000 and skops.io.loads(buffer.getvalue()) == "a", "skops itself unpacks it"
    with pytest.raises(ModelFileRefused, match="compressed"):
        load_model(buffer.getvalue())


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_entries_of_one_name_are_refused(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for tree in (text("harmless"), call_of(f"touch {tmp_path / 'marker'}")):
            file.writestr(SCHEMA, json.dumps(tree | {"protocol": FORMAT}))
    skops.io.loads(buffer.getvalue(), trusted=["os.system"])
    assert (tmp_path / "marker").exists(), "the one that a reader of the first would not see is run"
    with pytest.raises(ModelFileRefused, match="two entries"):
        load_model(buffer.getvalue())


def test_broken_bytes_are_refused() -> None:
    deep = b"[" * 200_000
    for broken in (b"", b"no zip", zipped(text("a"))[:-3], zipped({"content": 1}), zipped({"a": [deep.decode()]})):
        with pytest.raises(ModelFileRefused):
            load_model(broken)


def test_what_skops_itself_does_not_trust_stays_refused_by_it() -> None:
    """The second guard: without the list of types the tree is still judged."""
    with pytest.raises(UntrustedTypesFoundException):
        skops.io.loads(zipped(call_of("true")), trusted=[])
