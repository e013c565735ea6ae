"""A private file is there whole, or not at all: a key whose writing was interrupted can be made again."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from apc_bus.folders import create_private_file

MAKE_KEY = "import sys; from pathlib import Path; from apc_agents.keys import make_key; make_key(Path(sys.argv[1]))"


def test_an_interrupted_key_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "private" / "agent.pem"

    def make(**environment: str) -> int:
        command = [sys.executable, "-c", MAKE_KEY, str(path)]
        return subprocess.run(command, env=os.environ | environment, check=False).returncode

    assert make(APC_CRASH_AT="folders.before_link") == -signal.SIGKILL
    assert not path.exists(), "an empty file would never be replaced"
    assert make() == 0
    assert path.read_bytes().startswith(b"-----BEGIN PRIVATE KEY-----")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("has_links", [True, False])
def test_what_is_there_is_never_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool) -> None:
    if not has_links:

        def refuse(*_: object, **__: object) -> None:
            raise PermissionError("no links here")

        monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "key"
    create_private_file(path, b"first")
    with pytest.raises(FileExistsError):
        create_private_file(path, b"second")
    assert path.read_bytes() == b"first"
    assert [one.name for one in tmp_path.iterdir()] == ["key"]
