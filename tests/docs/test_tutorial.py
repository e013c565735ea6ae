"""The tutorial runs as it is written."""

import re
import subprocess
import sys
from pathlib import Path

TUTORIAL = Path(__file__).parents[2] / "docs/tutorial/first-agent.md"


def test_the_agent_and_its_test_run(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", TUTORIAL.read_text(encoding="utf-8"), re.DOTALL)
    assert [name for name, _ in blocks] == ["skeptic.py", "test_skeptic.py"]
    for name, code in blocks:
        (tmp_path / name).write_text(code, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_skeptic.py"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
