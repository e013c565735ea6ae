"""What our own models consist of: the list of what a model file may name, and the look at it before it is built.

A model file is a tree of nodes. Each names the way it is built (the loader of skops) and a type; a pair that is
not on this list is refused before anything of the file is built. Needs skops alone.
"""

import io
import json
import os
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any

FORMAT = 2
"""The one version of the format of skops that is read; written out, because skops takes two seconds to import."""

_ESTIMATORS = frozenset(
    f"sklearn.{name}"
    for name in (
        "compose._column_transformer.ColumnTransformer",
        "compose._target.TransformedTargetRegressor",
        "decomposition._pca.PCA",
        "decomposition._truncated_svd.TruncatedSVD",
        "discriminant_analysis.LinearDiscriminantAnalysis",
        "dummy.DummyClassifier",
        "dummy.DummyRegressor",
        "ensemble._forest.ExtraTreesClassifier",
        "ensemble._forest.ExtraTreesRegressor",
        "ensemble._forest.RandomForestClassifier",
        "ensemble._forest.RandomForestRegressor",
        "ensemble._hist_gradient_boosting.gradient_boosting.HistGradientBoostingClassifier",
        "ensemble._hist_gradient_boosting.gradient_boosting.HistGradientBoostingRegressor",
        "feature_extraction.text.TfidfTransformer",
        "feature_extraction.text.TfidfVectorizer",
        "feature_selection._univariate_selection.SelectKBest",
        "impute._base.SimpleImputer",
        "kernel_approximation.Nystroem",
        "linear_model._coordinate_descent.ElasticNet",
        "linear_model._logistic.LogisticRegression",
        "linear_model._ridge.Ridge",
        "neighbors._classification.KNeighborsClassifier",
        "neighbors._regression.KNeighborsRegressor",
        "pipeline.Pipeline",
        "preprocessing._data.QuantileTransformer",
        "preprocessing._data.RobustScaler",
        "preprocessing._data.StandardScaler",
        "preprocessing._encoders.OneHotEncoder",
        "preprocessing._label.LabelEncoder",
        "preprocessing._polynomial.PolynomialFeatures",
        "tree._classes.DecisionTreeClassifier",
        "tree._classes.DecisionTreeRegressor",
        "tree._classes.ExtraTreeClassifier",
        "tree._classes.ExtraTreeRegressor",
    )
)
_PARTS = frozenset(
    f"sklearn.{name}"
    for name in (
        "_loss.link.IdentityLink",
        "_loss.link.Interval",
        "_loss.link.LogitLink",
        "_loss.link.MultinomialLogit",
        "_loss.loss.HalfBinomialLoss",
        "_loss.loss.HalfMultinomialLoss",
        "_loss.loss.HalfSquaredError",
        "ensemble._hist_gradient_boosting.binning._BinMapper",
        "ensemble._hist_gradient_boosting.predictor.TreePredictor",
        "metrics._dist_metrics.EuclideanDistance64",
        "metrics._dist_metrics.ManhattanDistance64",
        "neighbors._ball_tree.BallTree",
        "neighbors._kd_tree.KDTree",
    )
)
_OF_SKRUB = frozenset(
    f"skrub.{name}"
    for name in (
        "_datetime_encoder.DatetimeEncoder",
        "_string_encoder.StringEncoder",
        "_to_datetime.ToDatetime",
        "_to_str.ToStr",
    )
)
_LOSSES = frozenset(
    f"sklearn._loss._loss.{name}" for name in ("CyHalfBinomialLoss", "CyHalfMultinomialLoss", "CyHalfSquaredError")
)
_NUMBERS = frozenset(
    f"numpy.{name}" for name in ("bool", "float32", "float64", "int32", "int64", "ndarray", "uint8", "uint32", "uint64")
)

TRUSTED: Mapping[str, frozenset[str]] = {
    "DTypeNode": frozenset({"numpy.dtype"}),
    "DictNode": frozenset({"builtins.dict"}),
    "FunctionNode": frozenset(
        {
            "sklearn.feature_selection._univariate_selection.f_classif",
            "sklearn.feature_selection._univariate_selection.f_regression",
        }
    ),
    "JsonNode": frozenset({"builtins.str"}),
    "ListNode": frozenset({"builtins.list"}),
    "LossNode": _LOSSES,
    "NdArrayNode": _NUMBERS,
    "ObjectNode": _ESTIMATORS | _PARTS | _OF_SKRUB,
    "RandomGeneratorNode": frozenset({"numpy.random._generator.Generator"}),
    "SliceNode": frozenset({"builtins.slice"}),
    "TreeNode": frozenset({"sklearn.tree._tree.Tree"}),
    "TupleNode": frozenset({"builtins.tuple"}),
    "TypeNode": frozenset({"builtins.float", "builtins.int", "builtins.str", "numpy.float64", "numpy.int64"}),
}
"""Loader -> the types that it may build."""

BEYOND_SKOPS = sorted(
    TRUSTED["DTypeNode"]
    | TRUSTED["FunctionNode"]
    | TRUSTED["TreeNode"]
    | _OF_SKRUB
    | {name for name in _PARTS if name.startswith(("sklearn.ensemble.", "sklearn.metrics.", "sklearn.neighbors."))}
)
"""Those of them that skops itself wants to be told: its own list has all estimators and numbers."""


SCHEMA = "schema.json"

ModelTree = dict[str, Any]


def refusal_of_file(data: bytes) -> str | None:
    """Say why a model file is not loaded; None = each type in it is on the list.

    Broken bytes raise what zipfile and json raise.
    """
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        names = file.namelist()
        if len(set(names)) != len(names):
            return "this model file has two entries of one name; they are not loaded"
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in file.infolist()):
            return "this model file has compressed entries, which ours never have; they are not loaded"
        return refusal_of_schema(json.loads(file.read(SCHEMA)))


def refusal_of_schema(schema: ModelTree) -> str | None:
    """Say which type of a model's tree is not on the list; None = all are."""
    if schema.get("protocol") != FORMAT:
        return f"this model file has format {schema.get('protocol')!r}; only {FORMAT} is read"
    for node in nodes_of(schema):
        name = f"{node.get('__module__')}.{node.get('__class__')}"
        if name not in TRUSTED.get(str(node["__loader__"]), ()):
            loader = node["__loader__"]
            return f"this model file names {name} ({loader}), which no model of ours needs; it is not loaded"
    return None


def nodes_of(value: Any) -> Iterator[ModelTree]:
    """Yield every node below a value, however it is nested."""
    pending = [value]
    while pending:
        one = pending.pop()
        if isinstance(one, dict):
            if "__loader__" in one:
                yield one
            pending.extend(reversed(one.values()))
        elif isinstance(one, list | tuple):
            pending.extend(reversed(one))


WITH_SKRUB = "--with-skrub"
"""Argument of the process that reads models."""
MARK = b'"skrub.'
"""Stands in each model file with parts of skrub: files of models are not compressed."""


def load_skrub() -> Any:
    """Import skrub without the folder `~/skrub_data` that it makes at its import."""
    os.environ.setdefault("SKB_DATA_DIRECTORY", tempfile.gettempdir())
    import skrub

    return skrub
