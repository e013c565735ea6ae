"""Every path of part IV, its arguments, its aliases."""

from typing import Any

import orjson
import pytest

from apc_minds.context import (
    CONTEXT_TO_STREAM_ALIASES,
    PATHS,
    ArgumentInvalid,
    ContextError,
    ContextSession,
    ContextState,
    InvalidTransition,
    LinearityError,
    SessionConfig,
    StreamResolver,
    UnknownPath,
    UnknownResource,
)
from apc_minds.context.stream_paths import canonical_path

PART_IV = """
focus.extract focus.peek map.extend map.transform seek.position seek.forward seek.backward seek.start seek.end
project.compress project.threshold project.stats linearity.tag linearity.promote linearity.drop linearity.stats
pressure.check pressure.auto_compress
""".split()


async def _session() -> ContextSession:
    session = ContextSession("s-1", config=SessionConfig(max_tokens=100))
    await session.add_system_turn("You are terse.")
    await session.add_user_turn("How far is Rome?")
    await session.add_assistant_turn("Far.")
    return session


async def _asked(path: str, /, **arguments: Any) -> tuple[dict[str, Any], ContextSession]:
    session = await _session()
    answer = await StreamResolver(session).resolve(path, **arguments)
    assert orjson.loads(orjson.dumps(answer)) == answer, "an answer is JSON"
    return answer, session


def test_there_are_exactly_the_operations_of_the_protocol() -> None:
    assert list(PATHS) == [f"self.stream.{name}" for name in PART_IV]


async def test_extract_gives_the_turn_in_focus() -> None:
    answer, session = await _asked("self.stream.focus.extract")
    assert (answer["position"], answer["turn"]["content"]) == (3, "Far.")
    assert answer["turn"]["timestamp"] == session.window.all_turns()[2].timestamp.isoformat()


async def test_peek_looks_elsewhere_and_stays() -> None:
    answer, session = await _asked("self.stream.focus.peek", position=1)
    assert (answer["turn"]["role"], answer["turn"]["resource_class"]) == ("system", "PRESERVED")
    assert session.window.position == 3
    assert (await _asked("self.stream.focus.peek", position=0))[0] == {"position": 0, "turn": None}


@pytest.mark.parametrize(
    ("transform", "values"),
    [
        ("content", [None, "You are terse.", "How far is Rome?", "Far."]),
        ("role", [None, "system", "user", "assistant"]),
        ("tokens", [0, 4, 4, 1]),
        ("pressure", [0.0, 0.04, 0.08, 0.09]),
    ],
)
async def test_extend_maps_every_position(transform: str, values: list[Any]) -> None:
    answer, _ = await _asked("self.stream.map.extend", transform=transform)
    assert answer["values"] == values


async def test_transform_summarizes_all_turns() -> None:
    answer, _ = await _asked("self.stream.map.transform", summary_tokens=2)
    assert [turn["summary"] for turn in answer["turns"]] == ["You a…", "How f…", "Far."]
    assert [turn["resource_id"] for turn in answer["turns"]] == ["t1", "t2", "t3"]


@pytest.mark.parametrize(
    ("path", "arguments", "position"),
    [
        ("position", {}, 3),
        ("position", {"target": 1}, 1),
        ("position", {"target": "0"}, 0),
        ("backward", {}, 2),
        ("backward", {"steps": 9}, 0),
        ("forward", {"steps": 2}, 3),
        ("start", {}, 0),
        ("end", {}, 3),
    ],
)
async def test_seek_moves_the_focus(path: str, arguments: dict[str, Any], position: int) -> None:
    answer, session = await _asked(f"self.stream.seek.{path}", **arguments)
    assert answer == {"position": position}
    assert session.window.position == position


async def test_forward_goes_from_where_the_focus_is() -> None:
    session = await _session()
    resolver = StreamResolver(session)
    await resolver.resolve("self.stream.seek.start")
    assert await resolver.resolve("self.stream.seek.forward", steps=2) == {"position": 2}
    assert (await resolver.resolve("self.stream.focus.extract"))["turn"]["content"] == "How far is Rome?"


async def test_compress_says_what_it_did() -> None:
    answer, session = await _asked("self.stream.project.compress", target_pressure=0.08)
    assert answer == {
        "original_tokens": 9,
        "compressed_tokens": 8,
        "compression_ratio": 8 / 9,
        "target_met": True,
        "dropped": 1,
        "summarized": 0,
        "paged": 0,
        "preserved": 2,
    }
    assert session.state is ContextState.COMPRESSED


async def test_threshold_is_read_and_set() -> None:
    answer, session = await _asked("self.stream.project.threshold")
    assert answer["effective_threshold"] == 0.7
    answer, session = await _asked("self.stream.project.threshold", error_rate=1.0, loop_detected=False)
    assert answer["effective_threshold"] == pytest.approx(0.85)
    assert session.threshold.error_rate == 1.0


async def test_stats_tell_what_the_window_holds() -> None:
    answer, _ = await _asked("self.stream.project.stats")
    assert answer == {
        "state": "ACCUMULATING",
        "pressure": 0.09,
        "total_tokens": 9,
        "max_tokens": 100,
        "overflow_tokens": 0,
        "turn_count": 3,
        "folded_count": 0,
        "compression_count": 0,
    }


@pytest.mark.parametrize(
    ("operation", "arguments"), [("tag", {"resource_class": "REQUIRED"}), ("promote", {"new_class": "REQUIRED"})]
)
async def test_tag_and_promote_raise_a_class(operation: str, arguments: dict[str, str]) -> None:
    answer, session = await _asked(f"self.stream.linearity.{operation}", resource_id="t3", **arguments)
    assert (answer["resource_class"], len(answer["provenance"])) == ("REQUIRED", 2)
    assert session.window.linearity.get_class("t3").name == "REQUIRED"


async def test_drop_takes_a_turn_out() -> None:
    answer, session = await _asked("self.stream.linearity.drop", resource_id="t3")
    assert answer["is_dropped"]
    assert len(session.window) == 2


async def test_linearity_stats_count_the_classes() -> None:
    answer, _ = await _asked("self.stream.linearity.stats")
    assert answer == {"droppable": 1, "required": 0, "preserved": 2, "dropped": 0, "total": 3}


async def test_pressure_is_checked_and_relieved() -> None:
    answer, _ = await _asked("self.stream.pressure.check")
    assert answer == {"pressure": 0.09, "threshold": 0.7, "needs_compression": False, "overflow_tokens": 0}
    answer, _ = await _asked("self.stream.pressure.auto_compress")
    assert answer == {"compressed": False, "pressure": 0.09, "state": "ACCUMULATING"}
    session = ContextSession("s-1", config=SessionConfig(max_tokens=200, auto_compress=False))
    await session.add_user_turn("go")
    await session.add_assistant_turn("x" * 400)
    await session.add_assistant_turn("x" * 300)
    answer = await StreamResolver(session).resolve("self.stream.pressure.auto_compress")
    assert (answer["compressed"], answer["state"]) == (True, "COMPRESSED")
    assert answer["pressure"] <= 0.5


def test_the_aliases_are_those_of_the_protocol() -> None:
    assert CONTEXT_TO_STREAM_ALIASES == {
        "self.context.window.focus": "self.stream.focus.extract",
        "self.context.window.map": "self.stream.map.extend",
        "self.context.window.seek": "self.stream.seek.position",
        "self.context.pressure.compress": "self.stream.project.compress",
        "self.context.linearity": "self.stream.linearity",
    }


@pytest.mark.parametrize(
    ("alias", "path"),
    [
        *CONTEXT_TO_STREAM_ALIASES.items(),
        ("self.context.linearity.promote", "self.stream.linearity.promote"),
        ("self.context.pressure.check", "self.stream.pressure.check"),
        ("self.context.seek.end", "self.stream.seek.end"),
        ("self.stream.seek.end", "self.stream.seek.end"),
    ],
)
async def test_an_alias_means_its_path(alias: str, path: str) -> None:
    assert canonical_path(alias) == path
    if path != "self.stream.linearity.promote":
        assert (await _asked(alias))[0] == (await _asked(path))[0] or path.endswith(("extract", "compress"))


@pytest.mark.parametrize("group", ["self.stream", "self.context", "self.stream.seek", "self.context.linearity"])
async def test_a_group_lists_its_operations(group: str) -> None:
    answer, _ = await _asked(group)
    assert answer["operations"]
    assert set(answer["operations"]) <= set(PATHS)


@pytest.mark.parametrize(
    "path",
    ["", "self", "self.stream.", "self.stream.focus.blink", "self.streams.seek.end", "self.context.window.seek.end",
     "self.stream.seek.position.x", "world.stream.seek.end", "self.contexts"],
)  # fmt: skip
async def test_an_unknown_path_is_refused(path: str) -> None:
    session = await _session()
    before = session.window
    with pytest.raises(UnknownPath, match=r"self\.stream\.focus\.extract"):
        await StreamResolver(session).resolve(path)
    assert session.window == before


@pytest.mark.parametrize(
    ("path", "arguments", "error", "place"),
    [
        ("focus.extract", {"position": 1}, ArgumentInvalid, "position"),
        ("focus.peek", {}, ArgumentInvalid, "position"),
        ("focus.peek", {"position": 4}, ArgumentInvalid, "position"),
        ("focus.peek", {"position": "last"}, ArgumentInvalid, "position"),
        ("map.extend", {"transform": "eval"}, ArgumentInvalid, "transform"),
        ("map.transform", {"summary_tokens": 0}, ArgumentInvalid, "summary_tokens"),
        ("seek.position", {"target": -1}, ArgumentInvalid, "position"),
        ("seek.forward", {"steps": -1}, ArgumentInvalid, "steps"),
        ("seek.backward", {"steps": 1.5}, ArgumentInvalid, "steps"),
        ("project.compress", {"target_pressure": 1.01}, ArgumentInvalid, "target_pressure"),
        ("project.compress", {"target_pressure": float("nan")}, ArgumentInvalid, "target_pressure"),
        ("project.threshold", {"error_rate": 2}, ArgumentInvalid, "error_rate"),
        ("linearity.tag", {"resource_id": "t1", "resource_class": "HOLY"}, ArgumentInvalid, "resource_class"),
        ("linearity.tag", {"resource_id": "t1", "session": None, "resource_class": "REQUIRED"}, ArgumentInvalid, None),
        ("linearity.tag", {"resource_id": "t9", "resource_class": "REQUIRED"}, UnknownResource, None),
        ("linearity.promote", {"resource_id": "t1", "new_class": "REQUIRED"}, LinearityError, None),
        ("linearity.drop", {"resource_id": "t2"}, LinearityError, None),
        ("seek", {"target": 1}, ArgumentInvalid, "target"),
        ("focus.peek", {"position": True}, ArgumentInvalid, "position"),
        ("seek.position", {"target": False}, ArgumentInvalid, "target"),
        ("seek.forward", {"steps": True}, ArgumentInvalid, "steps"),
        ("project.compress", {"target_pressure": True}, ArgumentInvalid, "target_pressure"),
        ("project.threshold", {"loop_detected": 7}, ArgumentInvalid, "loop_detected"),
        (
            "linearity.promote",
            {"resource_id": "t2", "new_class": "PRESERVED", "rationale": "\ud800"},
            ArgumentInvalid,
            "rationale",
        ),
        ("linearity.drop", {"resource_id": "t3", "rationale": "\0"}, ArgumentInvalid, "rationale"),
    ],
)
async def test_an_argument_that_does_not_fit_changes_nothing(
    path: str, arguments: dict[str, Any], error: type[ContextError], place: str | None
) -> None:
    session = await _session()
    before = (session.window, session.state, session.threshold)
    with pytest.raises(error) as refused:
        await StreamResolver(session).resolve(f"self.stream.{path}", **arguments)
    assert (session.window, session.state, session.threshold) == before
    if place is not None:
        assert getattr(refused.value, "place", None) == place


async def test_a_state_that_takes_no_compression_says_so() -> None:
    with pytest.raises(InvalidTransition, match="EMPTY"):
        await StreamResolver(ContextSession("s-1")).resolve("self.stream.project.compress")
