"""The list of what a model file may name."""

from skops.io._protocol import PROTOCOL

from apc_automl.model.model_types import FORMAT


def test_the_format_is_that_of_the_installed_skops() -> None:
    assert FORMAT == PROTOCOL
