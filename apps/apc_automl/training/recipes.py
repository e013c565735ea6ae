"""A recipe, as canonical JSON: what makes a model besides the data and the seed; and what each swarm may try."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import rfc8785
from pydantic import BaseModel, ConfigDict, field_validator

from apc_automl.data.table_schema import ColumnKind, ProblemKind, Schema

Setting = bool | int | float | str | None


class Recipe(BaseModel):
    """A method. Its canonical bytes go to the artifact store; their hash is the protocol_id of a TRANSFER."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    family: str
    """A key of `spaces.FAMILIES`."""
    preprocessing: dict[str, Setting]
    parameters: dict[str, Setting]
    parents: tuple[str, ...] = ()
    """Hashes of the recipes that this one was tuned from."""
    ancestor_swarms: tuple[str, ...] = ()
    """The swarms through which its line came, the oldest first."""

    @field_validator("preprocessing", "parameters")
    @classmethod
    def _whole_numbers_are_integers(cls, settings: dict[str, Setting]) -> dict[str, Setting]:
        # JSON knows one kind of number: a recipe that was read back must not differ from the one that was written.
        return {
            name: int(value) if isinstance(value, float) and value.is_integer() else value
            for name, value in settings.items()
        }

    def canonical(self) -> bytes:
        """Return the RFC 8785 bytes of a recipe."""
        return rfc8785.dumps(self.model_dump(mode="json"))

    @property
    def hash(self) -> str:
        """`sha256:` + hex of the canonical bytes, as the artifact store names them."""
        return "sha256:" + hashlib.sha256(self.canonical()).hexdigest()

    @property
    def method(self) -> str:
        """Hash of what is trained, whatever its ancestry: two recipes with one method make one model."""
        method = self.model_dump(mode="json", include={"family", "preprocessing", "parameters"})
        return hashlib.sha256(rfc8785.dumps(method)).hexdigest()

    @classmethod
    def read(cls, data: bytes) -> Self:
        """Return the inverse of `canonical`."""
        return cls.model_validate(json.loads(data))

    def describe(self) -> str:
        """Return a line for people: family and settings."""
        settings = {**self.parameters, **self.preprocessing}
        return f"{self.family} ({', '.join(f'{name}={value}' for name, value in sorted(settings.items()))})"


Axes = Mapping[str, tuple[Setting, ...]]


@dataclass(frozen=True)
class Family:
    """A kind of model: the swarm that starts with it, what it can learn and how, its settings (default first)."""

    swarm: str
    problems: frozenset[ProblemKind]
    intent: str
    assumption: str
    """What must hold of a table for it to do well."""
    preprocessing: Axes
    parameters: Axes


CLASSES = frozenset({ProblemKind.CLASSIFICATION})
NUMBERS = frozenset({ProblemKind.REGRESSION})
EITHER = CLASSES | NUMBERS

_MISSING: Axes = {"missing": ("median", "mean"), "rare_category_share": (0.01, 0.0, 0.05)}
_SCALED: Axes = {"scaling": ("standard", "robust", "quantile"), **_MISSING}
_UNSCALED: Axes = {"scaling": ("none",), **_MISSING}

_PENALTY: tuple[Setting, ...] = (1.0, 0.003, 0.01, 0.03, 0.1, 0.3, 3.0, 10.0, 30.0)
_TREE_DEPTH: tuple[Setting, ...] = (None, 4, 6, 8, 12)
_TREE_SHARE: tuple[Setting, ...] = ("sqrt", 0.3, 0.5, 0.8)

FAMILIES: Mapping[str, Family] = {
    "logistic": Family(
        "linear",
        CLASSES,
        "a logistic regression with a ridge penalty",
        "the log-odds of each class are a sum over the columns",
        _SCALED,
        {"inverse_penalty": _PENALTY},
    ),
    "discriminant": Family(
        "linear",
        CLASSES,
        "a linear discriminant with a shrunken covariance",
        "the rows of each class form a cloud of the same shape",
        _SCALED,
        {"shrinkage": (0.1, 0.01, 0.03, 0.2, 0.4, 0.7)},
    ),
    "logistic_components": Family(
        "linear",
        CLASSES,
        "a logistic regression on principal components",
        "the directions in which the rows differ most tell the classes apart",
        _SCALED,
        {"inverse_penalty": _PENALTY, "component_share": (0.95, 0.8, 0.9, 0.99)},
    ),
    "ridge": Family(
        "linear", NUMBERS, "a ridge regression", "the target is a sum over the columns", _SCALED, {"penalty": _PENALTY}
    ),
    "elastic_net": Family(
        "linear",
        NUMBERS,
        "a sparse linear regression",
        "few columns carry the target, and add up",
        _SCALED,
        {"penalty": (0.01, 0.001, 0.003, 0.03, 0.1, 0.3), "sparse_share": (0.5, 0.1, 0.9)},
    ),
    "ridge_pairs": Family(
        "linear",
        NUMBERS,
        "a ridge regression on principal components and their products",
        "the target is a sum over few directions and their products",
        _SCALED,
        {"penalty": _PENALTY, "components": (6, 4, 8, 10)},
    ),
    "boosted_trees": Family(
        "trees",
        EITHER,
        "trees that each mend what the earlier ones missed",
        "what small trees miss follows rules that small trees can learn",
        _UNSCALED,
        # First what scikit-learn itself takes.
        {
            "rounds": (100, 20, 40, 60, 80, 200),
            "rate": (0.1, 0.05, 0.2),
            "leaves": (31, 4, 8, 15),
            "leaf_rows": (20, 5, 10),
            "penalty": (0.0, 0.1, 1.0, 10.0),
        },
    ),
    "random_forest": Family(
        "trees",
        EITHER,
        "averaged trees on resampled rows",
        "the target changes at cuts of single columns",
        _UNSCALED,
        {"trees": (60, 30, 90), "leaf_rows": (2, 1, 4, 8), "column_share": _TREE_SHARE, "depth": _TREE_DEPTH},
    ),
    "extra_trees": Family(
        "trees",
        EITHER,
        "averaged trees with random cuts",
        "the target changes at cuts of single columns, and random cuts come near them",
        _UNSCALED,
        {"trees": (60, 30, 90), "leaf_rows": (2, 1, 4, 8), "column_share": _TREE_SHARE, "depth": _TREE_DEPTH},
    ),
    "neighbours": Family(
        "neighbours",
        EITHER,
        "the rows most like the current one",
        "rows that are near each other in all columns have like targets",
        _SCALED,
        {"neighbours": (9, 5, 15, 21, 31), "weights": ("distance", "uniform"), "power": (2, 1)},
    ),
    "kernel": Family(
        "neighbours",
        EITHER,
        "a penalised linear model on similarities to sample rows",
        "the likeness to some sample rows tells the target",
        _SCALED,
        {
            "sample_rows": (80, 40, 120),
            "width": (0.3, 0.03, 0.1, 1.0),
            "inverse_penalty": (1.0, 0.03, 0.1, 0.3, 3.0, 10.0, 30.0),
        },
    ),
    "component_neighbours": Family(
        "neighbours",
        EITHER,
        "the most similar rows, compared on principal components",
        "rows that are near each other in the main directions have like targets",
        _SCALED,
        {
            "neighbours": (9, 5, 15, 21, 31),
            "weights": ("distance", "uniform"),
            "component_share": (0.95, 0.8, 0.9),
        },
    ),
}

SWARMS = ("linear", "trees", "neighbours")


def families_of(swarm: str, problem: ProblemKind) -> list[str]:
    """Return the families a swarm starts with, in their order above."""
    return [name for name, family in FAMILIES.items() if family.swarm == swarm and problem in family.problems]


def axes_of(family: str, schema: Schema) -> dict[tuple[str, str], tuple[Setting, ...]]:
    """Return for each (part of the recipe, setting) its options in tuning order: numbers ascending, else as listed.

    A setting that cannot matter for this table keeps its default as its one option.
    """
    space = FAMILIES[family]
    moot = _moot_settings(schema)
    return {
        (part, name): options[:1] if name in moot else _in_order(options)
        for part, axes in (("preprocessing", space.preprocessing), ("parameters", space.parameters))
        for name, options in axes.items()
    }


def default_settings(axes: Axes) -> dict[str, Setting]:
    """Return the first option of every setting."""
    return {name: options[0] for name, options in axes.items()}


def _moot_settings(schema: Schema) -> set[str]:
    numbers = schema.of_kind(ColumnKind.NUMERIC) + schema.of_kind(ColumnKind.DATE)
    moot = set() if any(column.has_missing for column in numbers) else {"missing"}
    return moot | (set() if schema.of_kind(ColumnKind.CATEGORICAL) else {"rare_category_share"})


def _in_order(options: tuple[Setting, ...]) -> tuple[Setting, ...]:
    numbers = sorted(option for option in options if isinstance(option, int | float))
    return (*(option for option in options if not isinstance(option, int | float)), *numbers)
