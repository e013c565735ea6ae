"""Training processes: off the loop, one thread each, back after a kill, gone with their parent."""

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from tests.support.waiting import until

from apc_automl.errors import TableInvalid, TrainingUnavailable
from apc_automl.run.form import DEFAULT_TARGET
from apc_automl.training import work
from apc_automl.training.material import Study
from apc_automl.training.recipes import FAMILIES, Recipe, default_settings
from apc_automl.training.workbench import ATTEMPTS, Workbench


async def test_work_runs_in_another_process(workbench: Workbench) -> None:
    assert await workbench.run(os.getpid) != os.getpid()


async def test_a_process_measures_what_this_process_measures(workbench: Workbench, study: Study) -> None:
    family = FAMILIES["boosted_trees"]
    recipe = Recipe(
        family="boosted_trees",
        preprocessing=default_settings(family.preprocessing),
        parameters=default_settings(family.parameters),
    )
    there = await workbench.run(work.measure, recipe.canonical(), study)
    assert there == work.measure(recipe.canonical(), study)


async def test_errors_of_the_work_come_through(workbench: Workbench, tmp_path: Path) -> None:
    with pytest.raises(TableInvalid, match="no file"):
        await workbench.run(work.prepare, str(tmp_path / "none.csv"), "kind", None, 7, 2, 6000)


async def test_a_table_is_refused_before_the_libraries_are_loaded(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("size,kind\n" + "1,a\n2,b\n" * 2, encoding="utf-8")
    bench = Workbench(2)
    try:
        with pytest.raises(TableInvalid, match="4 usable rows"):
            await bench.run(work.check, str(path), "kind", None)
        assert await bench.run(eval, "'sklearn' in __import__('sys').modules") is False
    finally:
        bench.close()


async def test_a_table_that_was_checked_is_read_once(default_table: Path, tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    shutil.copyfile(default_table, path)
    bench = Workbench(2)
    try:
        await bench.run(work.check, str(path), DEFAULT_TARGET, None)
        path.unlink()
        prepared = await bench.run(work.prepare, str(path), DEFAULT_TARGET, None, 7, 2, 6000)
        assert prepared == work.prepare(str(default_table), DEFAULT_TARGET, None, 7, 2, 6000)
        with pytest.raises(TableInvalid, match="no file"):
            await bench.run(work.prepare, str(path), DEFAULT_TARGET, None, 7, 2, 6000)
    finally:
        bench.close()


DIES_ONCE = """
import os, pathlib, signal
marker = pathlib.Path({marker!r})
if not marker.exists():
    marker.touch()
    os.kill(os.getpid(), signal.SIGKILL)
pathlib.Path({done!r}).touch()
"""


async def test_a_killed_process_is_replaced_and_its_work_done_again(tmp_path: Path) -> None:
    bench = Workbench(2)
    scripts = [
        DIES_ONCE.format(marker=str(tmp_path / f"marker-{one}"), done=str(tmp_path / f"done-{one}")) for one in range(2)
    ]
    try:
        await asyncio.gather(*(bench.run(exec, script) for script in scripts))
    finally:
        bench.close()
    assert {"done-0", "done-1"} <= set(os.listdir(tmp_path))


async def test_work_that_kills_every_process_is_given_up() -> None:
    bench = Workbench()
    try:
        with pytest.raises(TrainingUnavailable, match=f"{ATTEMPTS} times"):
            await bench.run(os._exit, 1)
    finally:
        bench.close()


PARENT = """
import asyncio, os, sys
sys.path.insert(0, sys.argv[1])
from apc_automl.training.workbench import Workbench
async def main():
    pid = await Workbench().run(os.getpid)
    print(pid, flush=True)
    await asyncio.sleep(600)
if __name__ == "__main__":
    asyncio.run(main())
"""


def test_no_process_outlives_a_killed_parent(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT, encoding="utf-8")
    with subprocess.Popen([sys.executable, str(script), str(tmp_path)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    child.wait(timeout=30)


async def test_the_reader_of_models_can_start_before_its_first_request() -> None:
    bench = Workbench()
    try:
        bench.start_reader()
        await until(lambda: bench._reader.is_running)
    finally:
        bench.close()
    assert not bench._reader.is_running
