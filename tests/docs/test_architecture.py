"""The architecture page names the layers that the import check enforces."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_layers_of_the_page_are_those_of_the_check() -> None:
    configuration = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = (one for one in configuration["tool"]["importlinter"]["contracts"] if one["type"] == "layers")
    enforced = [sorted(re.findall(r"apc_(\w+)", layer)) for layer in contract["layers"]]
    page = (ROOT / "docs/specification/architecture.md").read_text(encoding="utf-8")
    table = page.partition("| layer | contents |\n|---|---|\n")[2].partition("\n\n")[0]
    documented = [sorted(row.split("|")[1].strip().split(", ")) for row in table.splitlines()]
    assert documented == [["apps"] if layer == ["automl"] else layer for layer in enforced]
