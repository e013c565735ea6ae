"""Names of the environment that are no settings: near ones are refused, others told."""

import os

import pytest

from apc_bus.errors import SettingMisspelled
from apc_bus.settings.services import check_names, known_names


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
