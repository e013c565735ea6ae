"""Which agents `apc serve agents` runs: names on its command line, and in a file."""

from pathlib import Path

import pytest
from tests.support.apc_command import ApcCommand

from apc_cli.errors import InputUnusable
from apc_cli.output.files import names_in


def test_a_file_has_one_name_a_line_and_comments(tmp_path: Path) -> None:
    file = tmp_path / "agents.txt"
    file.write_text("# all of them\nshop.agents:desk\n\n  shop.agents:team  # a team\n#shop.agents:old\n")
    assert names_in(file) == ["shop.agents:desk", "shop.agents:team"]


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "agents.txt"
    file.write_bytes(b"shop.agents:desk\n\xff\xfe")
    with pytest.raises(InputUnusable, match=r"no text in UTF-8: .* at byte 17"):
        names_in(file)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--host", "H 0", "shop.agents:desk"), "1 to 32 of a-z, 0-9, _ and -"),
        (("--host", "h0"), "name an agent or a team as package.module:name"),
        (("--host", "h0", "--from", "nowhere.txt"), "nowhere.txt"),
        (("--host", "h0", "nowhere:desk"), "no module 'nowhere'"),
        (("shop.agents:desk",), "--host"),
    ],
)
def test_what_names_no_host_or_no_agent_is_one_clear_line(
    arguments: tuple[str, ...], told: str, tmp_path: Path
) -> None:
    ended = ApcCommand(tmp_path)("serve", "agents", *arguments)
    assert ended.returncode != 0
    assert told in " ".join((ended.stdout + ended.stderr).split()), ended.stderr
    assert "Traceback" not in ended.stderr
