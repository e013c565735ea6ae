"""When a context needs compression, as the task goes.

Source: docs/specification/agents.md section 4.
"""

from dataclasses import dataclass, fields, replace
from typing import Final

from apc_agents.context.errors import ArgumentInvalid
from apc_agents.context.window.window import DEFAULT_THRESHOLD

LOWEST, HIGHEST = 0.5, 0.95
PROGRESS_SHARE: Final = 0.1
"""How far the threshold is above its base at the start of a task, and below at its end."""
ERROR_SHARE: Final = 0.15
"""How far errors raise it: what went wrong is worth keeping."""
LOOP_SHARE: Final = 0.15
"""How far a loop lowers it: a shorter context breaks the pattern."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveThreshold:
    """The pressure above which a context is compressed, within 0.5..0.95.

    It falls with the progress of the task and when a loop is found, and rises with the error rate.
    """

    base_threshold: float = DEFAULT_THRESHOLD
    task_progress: float | None = None
    """0..1; None = not known, which is the middle."""
    error_rate: float = 0.0
    """Share of the last steps that failed, 0..1."""
    loop_detected: bool = False

    def __post_init__(self) -> None:
        """Check the signals. Raises ArgumentInvalid."""
        for name in ("base_threshold", "task_progress", "error_rate"):
            value = getattr(self, name)
            if value is not None or name != "task_progress":
                checked_fraction(name, value)
        if not isinstance(self.loop_detected, bool):
            raise ArgumentInvalid("loop_detected", f"{self.loop_detected!r}: give true or false")

    @property
    def effective_threshold(self) -> float:
        """base + 0.1 (1 - 2 task_progress) + 0.15 error_rate - 0.15 loop_detected, clamped to 0.5..0.95."""
        progress = 0.5 if self.task_progress is None else self.task_progress
        moved = (
            self.base_threshold
            + PROGRESS_SHARE * (1 - 2 * progress)
            + ERROR_SHARE * self.error_rate
            - LOOP_SHARE * self.loop_detected
        )
        return max(LOWEST, min(HIGHEST, moved))

    def update(self, **changes: float | bool | None) -> "AdaptiveThreshold":
        """Return the threshold with some of its fields changed. Raises ArgumentInvalid."""
        for name in changes:
            if name not in _FIELDS:
                raise ArgumentInvalid(name, f"unknown: give {', '.join(_FIELDS)}")
        return replace(self, **changes)  # type: ignore[arg-type]

    def to_document(self) -> dict[str, float | bool | None]:
        """Return the fields as JSON."""
        return {name: getattr(self, name) for name in _FIELDS}


_FIELDS: Final = tuple(field.name for field in fields(AdaptiveThreshold))


def checked_fraction(place: str, value: object) -> float:
    """Return a number in 0..1. Raises ArgumentInvalid."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1:
        return float(value)
    raise ArgumentInvalid(place, f"{value!r} is no number in 0..1: give one")
