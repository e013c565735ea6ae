"""Prints the requirements of extras of pyproject.toml, those of the package included. The Dockerfile runs it."""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
extras = project["optional-dependencies"]
wanted = [*project["dependencies"], *(line for name in sys.argv[1:] for line in extras[name])]
sys.stdout.write("".join(f"{line}\n" for line in wanted))
