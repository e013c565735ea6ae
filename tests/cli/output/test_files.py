"""Files that commands read and write."""

from pathlib import Path

import pytest

from apc_cli.errors import InputUnusable
from apc_cli.output import files


def test_a_device_without_end_is_no_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_BYTES", 1 << 20)
    with pytest.raises(InputUnusable, match="cannot read /dev/zero: it has more than 1048576 bytes, or no end"):
        files.read_bytes(Path("/dev/zero"))


def test_a_file_that_is_as_large_as_allowed_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_BYTES", 4)
    (tmp_path / "input").write_bytes(b"1234")
    assert files.read_bytes(tmp_path / "input") == b"1234"
