"""Durations from the environment."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from apc_bus.settings import BusSettings, WorkerSettings
from apc_bus.settings.sources import Duration

READ = TypeAdapter[timedelta](Duration).validate_python


@given(st.floats(0, 1e6))
def test_a_number_is_seconds(seconds: float) -> None:
    assert (
        READ(repr(seconds)) == READ(seconds) == pytest.approx(timedelta(seconds=seconds), abs=timedelta(microseconds=1))
    )


@pytest.mark.parametrize("text", ["300", "300.0", "3e2", " 300 ", "PT5M", "00:05:00"])
def test_the_ways_to_write_five_minutes(text: str) -> None:
    assert READ(text) == timedelta(minutes=5)


@pytest.mark.parametrize("text", ["", "5m", "soon", "nan", "inf", "1e300", "P"])
def test_what_is_none_says_what_to_write(text: str) -> None:
    with pytest.raises(ValidationError, match="write seconds, such as 5 or"):
        READ(text)


def test_bounds_are_checked_after_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APC_CONSUMER_CHECK", "2.5")
    assert BusSettings().consumer_check == timedelta(seconds=2.5)
    monkeypatch.setenv("APC_CONSUMER_CHECK", "0.5")
    with pytest.raises(ValidationError, match="must be at least one second"):
        BusSettings()
    monkeypatch.setenv("APC_EFFECT_LEASE", "0")
    with pytest.raises(ValidationError, match="greater than"):
        WorkerSettings()


@pytest.mark.parametrize(
    ("name", "value"), [("APC_HEARTBEAT_SILENCE", "-1"), ("APC_HEARTBEAT_SILENCE", "0"), ("APC_DRAIN_TIMEOUT", "-5")]
)
def test_no_duration_is_negative_and_no_interval_is_nothing(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValidationError, match="greater than"):
        WorkerSettings()
