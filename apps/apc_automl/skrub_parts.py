"""The one place that imports skrub: it takes its time, and only tables with dates or texts need it."""

import os
import tempfile
from typing import Any

WITH_SKRUB = "--with-skrub"
"""Argument of the process that reads models."""
MARK = b'"skrub.'
"""Stands in each model file with parts of skrub: files of models are not compressed."""


def load_skrub() -> Any:
    """Import skrub without the folder `~/skrub_data` that it makes at its import."""
    os.environ.setdefault("SKB_DATA_DIRECTORY", tempfile.gettempdir())
    import skrub

    return skrub
