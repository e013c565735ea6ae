"""What the confined process that reads models must be able to do without a file of its machine."""

import subprocess
import sys

import pytest

NEIGHBOURS = """
import sys
from sklearn.neighbors import KNeighborsClassifier
from sklearn.utils import parallel
from apc_agents.confinement import ProcessLimits, confine
from apc_automl.model.reader_process import find_thread_pools

model = KNeighborsClassifier(n_neighbors=1, algorithm="brute").fit([[0.0], [1.0]], ["a", "b"])
parallel._threadpool_controller = None
if sys.argv[1] == "prepared":
    find_thread_pools()
still_open = confine(ProcessLimits(4 * 2**30), sys.path)
try:
    said = model.predict([[0.9]])[0]
except PermissionError as error:
    said = error.filename
sys.stdout.write(f"{said} {'files' in still_open}")
sys.stdout.flush()
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process confine itself")
def test_neighbours_of_a_wide_table_predict_in_the_confined_process() -> None:
    """Beyond fifteen columns scikit-learn computes neighbours by brute force, with a pool of threads."""
    assert said(how="unprepared") in ("/proc/self/maps False", "b True")
    assert said(how="prepared").startswith("b ")


def said(how: str) -> str:
    return subprocess.run(
        [sys.executable, "-I", "-c", NEIGHBOURS, how], capture_output=True, text=True, check=True, timeout=120
    ).stdout
