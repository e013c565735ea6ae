"""Imports every module of ours, so that Python writes the compiled files of what a start reads, and of nothing else.

The Dockerfile runs it. A module that needs a library of another image is left out.
"""

import importlib
import pkgutil
import sys
from importlib.metadata import files
from pathlib import PurePath

sys.dont_write_bytecode = False
sys.argv = ["apc"]
names = {PurePath(str(file)).parts[0] for file in files("apc-bus") or ()}
packages = sorted(name for name in names if name.startswith("apc_") and name.isidentifier())
for package in packages:
    waiting = [package]
    while waiting:
        name = waiting.pop()
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as missing:
            if missing.name is None or missing.name.startswith("apc_"):
                raise
            continue
        found = pkgutil.iter_modules(getattr(module, "__path__", ()), f"{name}.")
        waiting += [one.name for one in found if not one.name.endswith(".__main__")]
sys.stdout.write(f"compiled what {', '.join(packages)} import\n")
