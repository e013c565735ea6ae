"""Model files: a fitted pipeline as bytes that depend on nothing else, and back without running code.

The bytes are a plain pickle (`pickle.load` and `joblib.load` read it wherever scikit-learn is installed).
Two things make the same model the same bytes in any process: the pickler keeps no memo, so that it does not
matter which equal strings happen to be one object, and the padding inside C structures is zeroed.
"""

import io
import pickle
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from apc_agents.automl.errors import ModelRefused

PICKLE_PROTOCOL = 5

_PLAIN = frozenset(
    {
        ("builtins", "slice"),
        ("numpy", "dtype"),
        ("numpy", "float64"),
        ("numpy", "ndarray"),
        ("numpy._core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "scalar"),
        ("numpy._core.numeric", "_frombuffer"),
        ("numpy.random._pcg64", "PCG64"),
        ("numpy.random._pickle", "__bit_generator_ctor"),
        ("numpy.random._pickle", "__generator_ctor"),
        ("numpy.random.bit_generator", "SeedSequence"),
        ("numpy.random.bit_generator", "__pyx_unpickle_SeedSequence"),
        ("sklearn.feature_selection._univariate_selection", "f_classif"),
        ("sklearn.feature_selection._univariate_selection", "f_regression"),
    }
)
_COMPILED = (
    "sklearn._loss.",
    "sklearn.ensemble._hist_gradient_boosting.",
    "sklearn.metrics._dist_metrics",
    "sklearn.neighbors._ball_tree",
    "sklearn.neighbors._kd_tree",
    "sklearn.tree._tree",
)
"""Parts of estimators that are no estimators themselves; these modules hold numeric code only."""


def dump_model(model: Any) -> bytes:
    """The bytes of a fitted model."""
    buffer = io.BytesIO()
    pickler = _ModelPickler(buffer, protocol=PICKLE_PROTOCOL)
    pickler.fast = True
    pickler.dump(model)
    return buffer.getvalue()


def load_model(data: bytes) -> Any:
    """The model in bytes made by `dump_model`.

    Raises:
        ModelRefused: the bytes are no model, or name anything beyond estimators and numeric arrays. A hash
            proves where bytes come from, not that they are harmless: `pickle.load` would run what they say.
    """
    try:
        return _ModelUnpickler(io.BytesIO(data)).load()
    except ModelRefused:
        raise
    except Exception as error:
        # A broken pickle can raise nearly anything; for the caller it is one thing.
        raise ModelRefused(f"these bytes are no model: {error}") from error


class _ModelPickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, np.ndarray) and value.dtype.names is not None:
            clean = np.zeros(value.shape, value.dtype)
            for name in value.dtype.names:
                clean[name] = value[name]
            return clean.__reduce_ex__(PICKLE_PROTOCOL)
        return NotImplemented


class _ModelUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _PLAIN or module.startswith(_COMPILED):
            return super().find_class(module, name)
        if module.startswith("sklearn."):
            found = super().find_class(module, name)
            if isinstance(found, type) and issubclass(found, BaseEstimator):
                return found
        raise ModelRefused(f"these bytes name {module}.{name}, which no model of ours needs; they are not loaded")
