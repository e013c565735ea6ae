"""The paths `self.stream.*`, with their aliases `self.context.*`: one resolver for all operations on a context.

Source: docs/reference/conformance/context-engineering.md, part IV. Answers are JSON and stay on the server: they tell
classes and texts.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError, validate_call
from pydantic_core import PydanticCustomError

from apc_minds.context.session import ContextSession
from apc_minds.context.turns import ArgumentInvalid, ResourceClass, Turn, UnknownPath
from apc_minds.context.window import ContextWindow
from apc_minds.text import ExtractiveSummarizer

Answer = dict[str, Any]
Operation = Callable[..., Awaitable[Answer]]
ROOT: Final = "self.stream"
ALIAS_ROOT: Final = "self.context"

CONTEXT_TO_STREAM_ALIASES: Final[Mapping[str, str]] = {
    "self.context.window.focus": "self.stream.focus.extract",
    "self.context.window.map": "self.stream.map.extend",
    "self.context.window.seek": "self.stream.seek.position",
    "self.context.pressure.compress": "self.stream.project.compress",
    "self.context.linearity": "self.stream.linearity",
}
"""The aliases of the Context Engineering Protocol, section 4.2. Any other `self.context.X` means `self.stream.X` (part
VI, phase C).
"""

PATHS: Final[dict[str, Operation]] = {}
"""The operations by path; exactly those of part IV."""


def _no_boolean(value: Any) -> Any:
    # Else true would be taken for position 1.
    if isinstance(value, bool):
        raise PydanticCustomError("number", "true and false are no numbers")
    return value


Fraction = Annotated[float, BeforeValidator(_no_boolean), Field(ge=0, le=1, allow_inf_nan=False)]
Whole = Annotated[int, BeforeValidator(_no_boolean)]
Steps = Annotated[Whole, Field(ge=0)]
ClassName = Literal["DROPPABLE", "REQUIRED", "PRESERVED"]


def _at(path: str) -> Callable[[Operation], Operation]:
    """Register an operation; its arguments are validated by their types, texts of numbers are taken as numbers."""

    def register(operation: Operation) -> Operation:
        checked = validate_call(config=ConfigDict(arbitrary_types_allowed=True))(operation)
        PATHS[f"{ROOT}.{path}"] = checked
        return checked

    return register


def canonical_path(path: str) -> str:
    """Return the `self.stream` path that a path or alias means; `self.stream.X` itself stays as it is."""
    for alias, target in CONTEXT_TO_STREAM_ALIASES.items():
        if path == alias or path.startswith(f"{alias}."):
            return target + path.removeprefix(alias)
    if path == ALIAS_ROOT or path.startswith(f"{ALIAS_ROOT}."):
        return ROOT + path.removeprefix(ALIAS_ROOT)
    return path


class StreamResolver:
    """Resolves paths on one session."""

    def __init__(self, session: ContextSession) -> None:
        self._session = session

    async def resolve(self, path: str, /, **arguments: Any) -> Answer:
        """Run the operation of a path; of a group, such as `self.stream.seek`, list its operations.

        Raises:
            UnknownPath: no operation has this path.
            ArgumentInvalid: an argument that is unknown, missing, of the wrong type or out of range.
            ContextError: what the operation raised. The context is as it was in each of these cases.
        """
        target = canonical_path(path)
        operation = PATHS.get(target)
        if operation is None:
            return _listing(path, target, arguments)
        try:
            return await operation(self._session, **arguments)
        except ValidationError as error:
            raise _argument_invalid(operation, error) from error


def _listing(path: str, target: str, arguments: Mapping[str, Any]) -> Answer:
    is_below_root = target == ROOT or target.startswith(f"{ROOT}.")
    inside = [known for known in PATHS if is_below_root and known.startswith(f"{target}.")]
    if not inside:
        raise UnknownPath(path, list(PATHS))
    for name in arguments:
        raise ArgumentInvalid(name, f"{path} is a group and takes no arguments: call one of {', '.join(inside)}")
    return {"path": target, "operations": {known: _parameters(PATHS[known]) for known in inside}}


def _argument_invalid(operation: Operation, error: ValidationError) -> ArgumentInvalid:
    first = error.errors(include_url=False, include_input=False)[0]
    place = str(first["loc"][0]) if first["loc"] else "arguments"
    taken = ", ".join(_parameters(operation)) or "no arguments"
    return ArgumentInvalid(place, f"{first['msg'][:1].lower()}{first['msg'][1:]}; the operation takes {taken}")


def _parameters(operation: Operation) -> list[str]:
    return list(inspect.signature(operation).parameters)[1:]


def _shown(turn: Turn | None, window: ContextWindow, position: int) -> Answer:
    if turn is None:
        return {"position": position, "turn": None}
    shown = turn.to_document() | {"tokens": turn.tokens, "resource_class": window.class_of(turn).name}
    return {"position": position, "turn": shown}


@_at("focus.extract")
async def focus_extract(session: ContextSession) -> Answer:
    """Return the turn in focus."""
    window = session.window
    return _shown(window.extract(), window, window.position)


@_at("focus.peek")
async def focus_peek(session: ContextSession, position: Whole) -> Answer:
    """Return the turn at a position; the focus stays."""
    window = session.window
    return _shown(window.seek(position).extract(), window, position)


@_at("map.extend")
async def map_extend(
    session: ContextSession, transform: Literal["content", "role", "tokens", "pressure"] = "content"
) -> Answer:
    """Return a named function of the window as seen from each position 0..n.

    `pressure` is that of the turns up to there.
    """
    return {"transform": transform, "values": session.window.extend(_TRANSFORMS[transform])}


def _pressure_up_to(view: ContextWindow) -> float:
    return view.with_turns(view.all_turns()[: view.position]).pressure


_TRANSFORMS: Final[Mapping[str, Callable[[ContextWindow], Any]]] = {
    "content": lambda view: None if (turn := view.extract()) is None else turn.content,
    "role": lambda view: None if (turn := view.extract()) is None else turn.role.value,
    "tokens": lambda view: 0 if (turn := view.extract()) is None else turn.tokens,
    "pressure": _pressure_up_to,
}


@_at("map.transform")
async def map_transform(session: ContextSession, summary_tokens: Annotated[Whole, Field(ge=1)] = 16) -> Answer:
    """Return a summary of every turn, extracted without a model; the window stays."""
    window = session.window
    extract = ExtractiveSummarizer(window.counter).extract
    return {
        "turns": [
            {
                "resource_id": turn.resource_id,
                "role": turn.role.value,
                "tokens": turn.tokens,
                "resource_class": window.class_of(turn).name,
                "summary": extract(turn.content, summary_tokens),
            }
            for turn in window.all_turns()
        ]
    }


@_at("seek.position")
async def seek_position(session: ContextSession, target: Whole | None = None) -> Answer:
    """Return the focus; with `target` it is moved there first."""
    if target is not None:
        await session.seek(target)
    return {"position": session.window.position}


@_at("seek.forward")
async def seek_forward(session: ContextSession, steps: Steps = 1) -> Answer:
    """Move towards the newest turn, not beyond it."""
    window = session.window
    return await _moved(session, min(len(window), window.position + steps))


@_at("seek.backward")
async def seek_backward(session: ContextSession, steps: Steps = 1) -> Answer:
    """Move towards the beginning, not beyond it."""
    return await _moved(session, max(0, session.window.position - steps))


@_at("seek.start")
async def seek_start(session: ContextSession) -> Answer:
    """Move the focus before the first turn."""
    return await _moved(session, 0)


@_at("seek.end")
async def seek_end(session: ContextSession) -> Answer:
    """Move the focus to the newest turn."""
    return await _moved(session, len(session.window))


async def _moved(session: ContextSession, position: Whole) -> Answer:
    await session.seek(position)
    return {"position": position}


@_at("project.compress")
async def project_compress(session: ContextSession, target_pressure: Fraction | None = None) -> Answer:
    """Compress, by default to the session's target."""
    result = await session.compress(target_pressure)
    return {
        "original_tokens": result.original_tokens,
        "compressed_tokens": result.compressed_tokens,
        "compression_ratio": result.compression_ratio,
        "target_met": result.target_met,
        "dropped": result.dropped_count,
        "summarized": result.summarized_count,
        "paged": result.paged_count,
        "preserved": result.preserved_count,
    }


@_at("project.threshold")
async def project_threshold(
    session: ContextSession,
    base_threshold: Fraction | None = None,
    task_progress: Fraction | None = None,
    error_rate: Fraction | None = None,
    loop_detected: bool | None = None,
) -> Answer:
    """Return the adaptive threshold; what is given is set first."""
    given = {
        "base_threshold": base_threshold,
        "task_progress": task_progress,
        "error_rate": error_rate,
        "loop_detected": loop_detected,
    }
    threshold = await session.update_threshold(**{name: value for name, value in given.items() if value is not None})
    return threshold.to_document() | {"effective_threshold": threshold.effective_threshold}


@_at("project.stats")
async def project_stats(session: ContextSession) -> Answer:
    """Return what the window holds, and how often it was compressed."""
    window = session.window
    return {
        "state": session.state.name,
        "pressure": window.pressure,
        "total_tokens": window.total_tokens,
        "max_tokens": window.max_tokens,
        "overflow_tokens": window.overflow_tokens,
        "turn_count": len(window),
        "folded_count": len(window.folded),
        "compression_count": session.compressions,
    }


@_at("linearity.tag")
async def linearity_tag(session: ContextSession, resource_id: str, resource_class: ClassName) -> Answer:
    """Assign a class to a turn; it never sinks."""
    await session.tag(resource_id, ResourceClass[resource_class], "self.stream.linearity.tag")
    return _classified(session, resource_id)


@_at("linearity.promote")
async def linearity_promote(
    session: ContextSession, resource_id: str, new_class: ClassName, rationale: str = "self.stream.linearity.promote"
) -> Answer:
    """Raise the class of a turn."""
    await session.promote(resource_id, ResourceClass[new_class], rationale)
    return _classified(session, resource_id)


@_at("linearity.drop")
async def linearity_drop(
    session: ContextSession, resource_id: str, rationale: str = "self.stream.linearity.drop"
) -> Answer:
    """Take a DROPPABLE turn out of the window."""
    await session.drop(resource_id, rationale)
    return _classified(session, resource_id)


def _classified(session: ContextSession, resource_id: str) -> Answer:
    resource = session.window.linearity.resource(resource_id)
    return {
        "resource_id": resource_id,
        "resource_class": resource.resource_class.name,
        "is_dropped": resource.is_dropped,
        "provenance": [
            {"event": one.event, "resource_class": one.resource_class.name, "source": one.source}
            for one in resource.provenance
        ],
    }


@_at("linearity.stats")
async def linearity_stats(session: ContextSession) -> Answer:
    """Return how many resources each class has."""
    return dict(session.window.linearity.stats())


@_at("pressure.check")
async def pressure_check(session: ContextSession) -> Answer:
    """Return the pressure, and whether it is above the threshold."""
    window, threshold = session.window, session.threshold.effective_threshold
    return {
        "pressure": window.pressure,
        "threshold": threshold,
        "needs_compression": window.pressure > threshold,
        "overflow_tokens": window.overflow_tokens,
    }


@_at("pressure.auto_compress")
async def pressure_auto_compress(session: ContextSession) -> Answer:
    """Compress if the pressure is above the threshold."""
    compressed = await session.compress_if_needed()
    return {"compressed": compressed, "pressure": session.pressure, "state": session.state.name}
