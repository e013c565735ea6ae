"""Names of the environment that are no settings: near ones are refused, others told."""

import os
from importlib.metadata import EntryPoint

import pytest

from apc_automl.settings import AutomlSettings
from apc_bus.errors import SettingMisspelled
from apc_bus.settings import read_by
from apc_bus.settings.services import APPLICATIONS, check_names, known_names, with_applications


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("APC_DATBASE_URL", "APC_DATABASE_URL"),
        ("APC_AMPQ_URL", "APC_AMQP_URL"),
        ("APC_SHARD", "APC_SHARDS"),
        ("APC_HEARTBEET", "APC_HEARTBEAT"),
        ("APC_DATABASE_URLS", "APC_DATABASE_URL"),
        ("APC_amqp_url", "APC_AMQP_URL"),
    ],
)
def test_a_misspelled_setting_is_refused_with_the_one_that_is_meant(name: str, meant: str) -> None:
    with pytest.raises(SettingMisspelled) as caught:
        check_names({name: "x", "APC_ZZ": "1"})
    assert str(caught.value) == f"{name} is no setting: do you mean {meant}? Correct it, or unset {name}"


def test_other_unknown_names_are_told() -> None:
    given = {"APC_SHARDS": "2", "APC_HEARTBEAT_SECONDS": "5", "APC_CRASH_AT": "x", "APC_ZZ": "1", "HOME": "/"}

    assert check_names(given) == [
        "APC_HEARTBEAT_SECONDS is no setting and is ignored: do you mean APC_HEARTBEAT?",
        "APC_ZZ is no setting and is ignored",
    ]


def test_every_setting_is_known_and_so_is_the_environment_of_the_tests() -> None:
    assert check_names(dict.fromkeys(known_names(), "x")) == []
    assert check_names(os.environ) == []


def test_what_kubernetes_sets_for_a_service_is_not_told() -> None:
    given = {
        "APC_BROKER_SERVICE_HOST": "10.0.0.1",
        "APC_BROKER_SERVICE_PORT_AMQP": "5672",
        "APC_BROKER_PORT": "tcp://10.0.0.1:5672",
        "APC_BROKER_PORT_5672_TCP_ADDR": "10.0.0.1",
    }
    assert check_names(given) == []
    assert check_names({"APC_BROKER_PORT": "5672"}) != []


def test_the_settings_of_an_application_are_known_like_ours() -> None:
    assert read_by()["automl"] == (AutomlSettings,)
    assert check_names({"APC_AUTOML_SEED": "7"}) == []
    with pytest.raises(SettingMisspelled, match="do you mean APC_AUTOML_SEED"):
        check_names({"APC_AUTOML_SEDE": "7"})


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("no_such_module:Settings", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("json:no_such_name", "AttributeError: "),
        ("json:dumps", "it is no class of settings"),
        ("json:JSONDecoder", "it is no class of settings"),
    ],
)
def test_settings_that_cannot_be_loaded_are_named_and_left_out(value: str, reason: str) -> None:
    readers, (problem,) = with_applications({}, [EntryPoint("broken", value, APPLICATIONS)])

    assert readers == {}
    assert problem.startswith(f"no settings of broken: {value} cannot be used: {reason}")


def test_two_classes_of_one_application_are_both_read() -> None:
    first, second = "apc_automl.settings:AutomlSettings", "apc_bus.settings:WebSettings"
    readers, _ = with_applications({}, [EntryPoint("two", value, APPLICATIONS) for value in (second, first)])

    assert [kind.__name__ for kind in readers["two"]] == ["AutomlSettings", "WebSettings"]
