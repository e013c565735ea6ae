"""Completion in a shell: what `apc --install-completion` writes completes commands."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
apc --install-completion >&2
source .bash_completions/apc.sh
COMP_WORDS=(apc dead-letter re) COMP_CWORD=2
_apc_completion apc
echo "${COMPREPLY[@]}"
"""


def test_what_is_installed_completes_commands(tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    done = subprocess.run(
        ["bash", "-c", SCRIPT],
        cwd=tmp_path, env={"HOME": str(tmp_path), "PATH": path}, capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert done.stdout.split() == ["requeue"]
    assert "apc.sh" in (tmp_path / ".bashrc").read_text()
