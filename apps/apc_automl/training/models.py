"""From a recipe to a scikit-learn pipeline that takes the user's columns as they are in the table."""

from collections.abc import Callable, Mapping
from typing import Any

from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.feature_selection import SelectKBest, f_classif, f_regression
from sklearn.impute import SimpleImputer
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import ElasticNet, LogisticRegression, Ridge
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder, PolynomialFeatures, QuantileTransformer, RobustScaler, StandardScaler

from apc_automl.data.table_schema import TEXT_NUMBERS, Column, ColumnKind, ProblemKind, Schema
from apc_automl.model.model_types import load_skrub
from apc_automl.training.recipes import Recipe

Step = tuple[str, Any]
Settings = Mapping[str, Any]


def build_columns(settings: Settings, schema: Schema, rows: int) -> ColumnTransformer:
    """Return the unfitted step. A date and a text are each their own part: skrub reads one column at a time.

    Args:
        rows: how many rows it will be fitted on.
    """
    scaling = _scaling(settings, rows)
    filled = [("missing", SimpleImputer(strategy=settings["missing"])), *scaling]
    parts: list[tuple[str, Any, Any]] = [
        ("numeric", Pipeline(filled), schema.names(ColumnKind.NUMERIC)),
        ("categorical", _categories(settings), schema.names(ColumnKind.CATEGORICAL)),
    ]
    for number, column in enumerate(schema.of_kind(ColumnKind.DATE)):
        parts.append((f"date_{number}", Pipeline([*date_steps(column), *filled]), column.name))
    for number, column in enumerate(schema.of_kind(ColumnKind.TEXT)):
        parts.append((f"text_{number}", Pipeline([text_step(column), *scaling]), column.name))
    return ColumnTransformer([part for part in parts if part[2]], sparse_threshold=0.0)


def _scaling(settings: Settings, rows: int) -> list[Step]:
    match settings["scaling"]:
        case "standard":
            return [("scaling", StandardScaler())]
        case "robust":
            return [("scaling", RobustScaler(unit_variance=True))]
        case "quantile":
            steps = max(10, min(200, rows // 2))
            normal = QuantileTransformer(n_quantiles=steps, output_distribution="normal", random_state=0)
            return [("scaling", normal)]
    return []


def _categories(settings: Settings) -> OneHotEncoder:
    share = settings["rare_category_share"]
    return OneHotEncoder(
        handle_unknown="infrequent_if_exist" if share else "ignore",
        min_frequency=share or None,
        sparse_output=False,
    )


def date_steps(column: Column) -> list[Step]:
    """Return the unfitted steps that make numbers of a date."""
    skrub = load_skrub()
    return [
        ("read", skrub.ToDatetime(format=column.date_format)),
        ("parts", skrub.DatetimeEncoder(add_weekday=True)),
    ]


def text_step(column: Column) -> Step:
    """Return the unfitted step that makes numbers of a text."""
    encoder = load_skrub().StringEncoder(
        n_components=min(TEXT_NUMBERS, len(column.words)),
        ngram_range=(1, 1),
        analyzer="word",
        vocabulary=list(column.words),
        random_state=0,
    )
    return ("words", encoder)


WIDEST = 100
"""Features that a model is fitted on at most."""


def build_pipeline(recipe: Recipe, schema: Schema, seed: int, rows: int) -> Pipeline:
    """Return an unfitted pipeline; a fit is single-threaded and a function of (recipe, schema, seed, data).

    Args:
        rows: how many rows it will be fitted on; settings that count rows are capped by it.
    """
    columns = build_columns(recipe.preprocessing, schema, rows)
    model = _STEPS[recipe.family](recipe.parameters, schema, seed, rows)
    return Pipeline([("columns", columns), *_screen(schema), *model])


def build_baseline(schema: Schema) -> Any:
    """Return the trivial model: class shares, or the mean."""
    return DummyClassifier(strategy="prior") if _is_classification(schema) else DummyRegressor(strategy="mean")


def _screen(schema: Schema) -> list[Step]:
    """Return the step that keeps the columns of a wide table that predict best alone: its width must not cost time."""
    if schema.feature_count <= WIDEST:
        return []
    score = f_classif if _is_classification(schema) else f_regression
    return [("screen", SelectKBest(score, k=WIDEST))]


def _is_classification(schema: Schema) -> bool:
    return schema.problem is ProblemKind.CLASSIFICATION


def _logistic(inverse_penalty: float) -> Step:
    return ("model", LogisticRegression(C=inverse_penalty, max_iter=500))


def _linear(settings: Settings, schema: Schema, inverse_penalty: float) -> Step:
    return _logistic(inverse_penalty) if _is_classification(schema) else ("model", Ridge(alpha=1.0 / inverse_penalty))


def _components(settings: Settings) -> Step:
    return ("components", PCA(n_components=settings["component_share"], svd_solver="full"))


def _pairs(settings: Settings, schema: Schema, seed: int, rows: int) -> list[Step]:
    count = min(settings["components"], len(schema.columns), rows // 4)
    return [
        ("components", PCA(n_components=count, svd_solver="full")),
        ("pairs", PolynomialFeatures(degree=2, include_bias=False)),
        ("spread", StandardScaler()),
        ("model", Ridge(alpha=settings["penalty"])),
    ]


def _elastic_net(settings: Settings, schema: Schema, seed: int, rows: int) -> list[Step]:
    model = ElasticNet(alpha=settings["penalty"], l1_ratio=settings["sparse_share"], max_iter=3000)
    # The penalty is in units of the target: scaled, its options mean the same for every table.
    return [("model", TransformedTargetRegressor(regressor=model, transformer=StandardScaler()))]


def _forest(classifier: Any, regressor: Any) -> "Builder":
    def build(settings: Settings, schema: Schema, seed: int, rows: int) -> list[Step]:
        model = classifier if _is_classification(schema) else regressor
        return [
            (
                "model",
                model(
                    n_estimators=settings["trees"],
                    min_samples_leaf=settings["leaf_rows"],
                    max_features=settings["column_share"],
                    max_depth=settings["depth"],
                    random_state=seed,
                    n_jobs=1,
                ),
            )
        ]

    return build


def _boosted(settings: Settings, schema: Schema, seed: int, rows: int) -> list[Step]:
    model = HistGradientBoostingClassifier if _is_classification(schema) else HistGradientBoostingRegressor
    return [
        (
            "model",
            model(
                max_iter=settings["rounds"],
                learning_rate=settings["rate"],
                max_leaf_nodes=settings["leaves"],
                min_samples_leaf=settings["leaf_rows"],
                l2_regularization=settings["penalty"],
                early_stopping=False,
                random_state=seed,
            ),
        )
    ]


def _neighbours(settings: Settings, schema: Schema, seed: int, rows: int) -> list[Step]:
    model = KNeighborsClassifier if _is_classification(schema) else KNeighborsRegressor
    count = max(1, min(settings["neighbours"], rows // 2))
    return [("model", model(n_neighbors=count, weights=settings["weights"], p=settings.get("power", 2), n_jobs=1))]


def _kernel(settings: Settings, schema: Schema, seed: int, rows: int) -> list[Step]:
    samples = Nystroem(
        gamma=settings["width"] / min(WIDEST, schema.feature_count),
        n_components=min(settings["sample_rows"], rows // 2),
        random_state=seed,
        n_jobs=1,
    )
    return [("kernel", samples), _linear(settings, schema, settings["inverse_penalty"])]


Builder = Callable[[Settings, Schema, int, int], list[Step]]

_STEPS: Mapping[str, Builder] = {
    "logistic": lambda settings, schema, seed, rows: [_logistic(settings["inverse_penalty"])],
    "discriminant": lambda settings, schema, seed, rows: [
        ("model", LinearDiscriminantAnalysis(solver="lsqr", shrinkage=settings["shrinkage"]))
    ],
    "logistic_components": lambda settings, schema, seed, rows: [
        _components(settings),
        _logistic(settings["inverse_penalty"]),
    ],
    "ridge": lambda settings, schema, seed, rows: [("model", Ridge(alpha=settings["penalty"]))],
    "elastic_net": _elastic_net,
    "ridge_pairs": _pairs,
    "random_forest": _forest(RandomForestClassifier, RandomForestRegressor),
    "extra_trees": _forest(ExtraTreesClassifier, ExtraTreesRegressor),
    "boosted_trees": _boosted,
    "neighbours": _neighbours,
    "kernel": _kernel,
    "component_neighbours": lambda settings, schema, seed, rows: [
        _components(settings),
        *_neighbours(settings, schema, seed, rows),
    ],
}
