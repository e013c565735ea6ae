"""The profile of `apc up --chaos`: which faults strike which messages, and how often."""

import tomllib
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from random import Random
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from apc_bus.errors import ChaosProfileInvalid

LONGEST_MS = 60_000
Milliseconds = Annotated[int, Field(ge=0, le=LONGEST_MS)]


class FaultKind(StrEnum):
    """What happens to a message.

    `drop`: its publish, or the confirm of it, is lost on the way (the sender gets PublishUnknown), or its delivery
    is (the broker hands it over again). `delay`: it comes later, others overtake it. `duplicate`: it comes twice.
    `reorder`: it waits until the next one has passed. `corrupt`: a damaged copy of it reaches the gate as well.
    `slow`: the handler takes longer, and whatever waits behind it waits longer too.
    """

    DROP = "drop"
    DELAY = "delay"
    DUPLICATE = "duplicate"
    REORDER = "reorder"
    CORRUPT = "corrupt"
    SLOW = "slow"


class Side(StrEnum):
    """Where a fault strikes: on the way out of an agent, or on the way in."""

    PUBLISH = "publish"
    DELIVERY = "delivery"


_SIDES = {
    FaultKind.DROP: frozenset(Side),
    FaultKind.DELAY: frozenset(Side),
    FaultKind.DUPLICATE: frozenset(Side),
    FaultKind.REORDER: frozenset({Side.DELIVERY}),
    FaultKind.CORRUPT: frozenset({Side.PUBLISH}),
    FaultKind.SLOW: frozenset({Side.DELIVERY}),
}
_TIMED = frozenset({FaultKind.DELAY, FaultKind.REORDER, FaultKind.SLOW})


class Fault(BaseModel):
    """One `[[fault]]` of a profile."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: FaultKind
    chance: Annotated[float, Field(gt=0, le=0.9)]
    """Of each message that it concerns; 0.9 at most, so that a message gets through in the end."""
    sides: frozenset[Side] = frozenset()
    """`publish`, `delivery`; default: every side on which this kind of fault can strike."""
    agents: tuple[str, ...] = ("*",)
    """Shell patterns of agent ids."""
    types: tuple[str, ...] = ("*",)
    """Shell patterns of AMQP types: a packet type, `receipts`."""
    ms: tuple[Milliseconds, Milliseconds] = (10, 200)
    """Shortest and longest time in milliseconds of a delay, a slow handler, and of waiting for one to pass."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        impossible = self.sides - _SIDES[self.kind]
        if impossible:
            raise ValueError(f"{self.kind} does not strike at {', '.join(sorted(impossible))}: leave `sides` out")
        if self.ms[0] > self.ms[1]:
            raise ValueError("ms: write the shortest time first")
        if "ms" in self.model_fields_set and self.kind not in _TIMED:
            raise ValueError(f"ms: {self.kind} takes no time, remove it")
        return self

    def concerns(self, side: Side, agent_id: str, message_type: str) -> bool:
        """Return whether it may strike this message at all."""
        return (
            side in (self.sides or _SIDES[self.kind])
            and any(fnmatchcase(agent_id, pattern) for pattern in self.agents)
            and any(fnmatchcase(message_type, pattern) for pattern in self.types)
        )


class ChaosProfile(BaseModel):
    """A seed and its faults."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seed: int = 0
    fault: tuple[Fault, ...] = ()


class Dice:
    """Which faults strike a message: by the seed, the agent, the message's id, and how often it has been seen.

    Not by the order in which messages come, so that the same messages meet the same faults in every run.
    """

    def __init__(self, profile: ChaosProfile, agent_id: str) -> None:
        self._profile = profile
        self._agent_id = agent_id
        self._seen: Counter[tuple[Side, str]] = Counter()

    def throw(self, side: Side, message_id: str, message_type: str) -> tuple[Sequence[Fault], Random]:
        """Return the faults that strike it this time, and the chance that decides how."""
        self._seen[side, message_id] += 1
        time = self._seen[side, message_id]
        chance = Random(f"{self._profile.seed}/{self._agent_id}/{side}/{message_id}/{time}")
        thrown = [(fault, chance.random()) for fault in self._profile.fault]
        return [
            fault
            for fault, number in thrown
            if number < fault.chance and fault.concerns(side, self._agent_id, message_type)
        ], chance


def load_profile(path: Path) -> ChaosProfile:
    """Return the profile in a TOML file.

    Raises:
        ChaosProfileInvalid: the file cannot be read, is no TOML, or says what no profile says; names the field.
    """
    try:
        return ChaosProfile.model_validate(tomllib.loads(path.read_text("utf-8")))
    except OSError as error:
        raise ChaosProfileInvalid(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ChaosProfileInvalid(f"{path}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ChaosProfileInvalid(f"{path} is no TOML: {error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"])) or "the profile"
        raise ChaosProfileInvalid(f"{path}: {place}: {first['msg'].removeprefix('Value error, ')}") from error
