"""Attacks with the name of a run to go on from: it reaches a query of the log and the environment of a process."""

import pytest
from pydantic import ValidationError

from apc_automl.settings import AutomlSettings


@pytest.mark.parametrize("name", ["x' OR '1'='1", "run\nAPC_AUTOML_SEED=1", "../run", ""])
@pytest.mark.parametrize("is_guarded", [False, True])
def test_the_name_of_a_run_is_an_id_for_every_role(name: str, is_guarded: bool) -> None:
    if is_guarded:
        with pytest.raises(ValidationError):
            AutomlSettings(resume=name)
    else:
        assert AutomlSettings().model_copy(update={"resume": name}).resume == name
