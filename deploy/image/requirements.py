"""Prints the requirements of extras of pyproject.toml, those of the package included. The Dockerfile runs it.

An extra that includes another one (`apc-bus[server]`) is named beside it.
"""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
extras = project["optional-dependencies"]
lines = [*project["dependencies"], *(line for name in sys.argv[1:] for line in extras[name])]
wanted = [line for line in lines if not line.startswith(f"{project['name']}[")]
sys.stdout.write("".join(f"{line}\n" for line in wanted))
