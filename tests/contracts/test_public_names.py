"""What `from apc_contracts import …` offers."""

import subprocess
import sys

import apc_contracts


def test_every_name_is_there_once() -> None:
    assert len(apc_contracts.__all__) == len(set(apc_contracts.__all__))
    for name in apc_contracts.__all__:
        assert getattr(apc_contracts, name) is not None


def test_the_import_brings_neither_cel_nor_a_key_store() -> None:
    code = "import apc_contracts, sys; assert not {'cel', 'cryptography', 'jsonschema'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(apc_contracts, "no_such_name")
