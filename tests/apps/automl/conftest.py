"""Small tables and the engine's jobs over them."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sklearn.datasets import load_diabetes, load_wine
from threadpoolctl import threadpool_limits

from apc_automl.run.form import DEFAULT_TARGET, write_default_table
from apc_automl.training import work
from apc_automl.training.material import Blob, Prepared, Study
from apc_automl.training.measuring import prepare
from apc_automl.training.recipes import FAMILIES, Recipe, default_settings
from apc_automl.training.workbench import Workbench

SEED = 7

WriteTable = Callable[[str], Path]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """As in the training processes; two threads on a busy machine wait for each other without end."""
    with threadpool_limits(1):
        yield


@pytest.fixture(scope="session")
def default_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_default_table(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def wine_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "wine.csv"
    load_wine(as_frame=True).frame.to_csv(path, index=False)
    return path


@pytest.fixture(scope="session")
def diabetes_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "diabetes.csv"
    load_diabetes(as_frame=True).frame.to_csv(path, index=False)
    return path


@pytest.fixture(scope="session")
def prepared(default_table: Path) -> Prepared:
    return prepare(str(default_table), DEFAULT_TARGET, None, SEED, 2, 6000)


@pytest.fixture(scope="session")
def study(prepared: Prepared) -> Study:
    return Study(Blob.of(prepared.schema), Blob.of(prepared.train), Blob.of(prepared.held_out), SEED)


@pytest.fixture
def write_table(tmp_path: Path) -> WriteTable:
    def write(text: str) -> Path:
        path = tmp_path / "table.csv"
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture(scope="session")
def workbench(study: Study) -> Iterator[Workbench]:
    """Its processes have started: that takes longer, on a busy machine, than a packet is waited for."""
    bench = Workbench(2)
    with asyncio.Runner() as runner:
        runner.run(warm_up(bench, study))
    yield bench
    bench.close()


async def warm_up(bench: Workbench, study: Study) -> None:
    family = FAMILIES["logistic"]
    recipe = Recipe(
        family="logistic",
        preprocessing=default_settings(family.preprocessing),
        parameters=default_settings(family.parameters),
    )
    measured = await bench.run(work.measure, recipe.canonical(), study)
    await bench.predict(Blob.of(measured.model), study, study.held_out)
