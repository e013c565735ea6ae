"""A file that somebody has sent, given to a command that reads it on this machine."""

from pathlib import Path

import pytest
import yaml

from apc_cli.commands import packet
from apc_cli.errors import InputUnusable

LEVELS = 4
BOMB = "packets:\n- &a0 {packet_id: p}\n" + "".join(
    f"- &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, LEVELS + 1)
)
"""Each level holds the one before nine times; with nine levels the document has 387 million values."""


def values_in(document: object) -> int:
    """Return how many values a document has when it is written out."""
    if isinstance(document, dict):
        return 1 + sum(map(values_in, document.values()))
    return 1 + sum(map(values_in, document)) if isinstance(document, list) else 1


@pytest.mark.parametrize("is_guarded", [False, True])
def test_a_small_yaml_file_does_not_grow_without_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_guarded: bool
) -> None:
    if not is_guarded:
        monkeypatch.setattr(packet.PlainLoader, "compose_node", yaml.SafeLoader.compose_node)
        assert values_in(packet._yaml(BOMB, tmp_path)) > 9**LEVELS
        return
    with pytest.raises(InputUnusable, match="no anchors and aliases"):
        packet._yaml(BOMB, tmp_path)
