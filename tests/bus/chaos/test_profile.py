"""Profiles: what they may say, and the dice that they throw."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apc_bus.chaos import ChaosProfile, Dice, Fault, FaultKind, Side, load_profile
from apc_bus.errors import ChaosProfileInvalid

ALL = tuple(Fault(kind=kind, chance=0.5) for kind in FaultKind)
IDS = st.lists(st.uuids().map(str), unique=True, min_size=2, max_size=20)


def test_a_profile_is_read_from_toml(tmp_path: Path) -> None:
    path = tmp_path / "profile.toml"
    path.write_text('seed = 7\n[[fault]]\nkind = "delay"\nchance = 0.1\nms = [5, 50]\nagents = ["builder-*"]\n')
    profile = load_profile(path)
    assert profile.seed == 7
    (fault,) = profile.fault
    assert fault.concerns(Side.PUBLISH, "builder-1", "IDEA") and fault.concerns(Side.DELIVERY, "builder-2", "ACK")
    assert not fault.concerns(Side.PUBLISH, "sentinel", "IDEA")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("seed = ", "is no TOML"),
        ("seed = " + "9" * 5_000, "is no TOML"),
        ("seed = " + "[" * 100_000, "is no TOML: it is too deep"),
        ("sede = 1", "sede: Extra inputs"),
        ('seed = "x"', "seed: Input should be a valid integer"),
        ('[[fault]]\nkind = "explode"\nchance = 0.1', "fault.0.kind: Input should be 'drop', 'delay'"),
        ('[[fault]]\nkind = "drop"', "fault.0.chance: Field required"),
        ('[[fault]]\nkind = "drop"\nchance = 1', "fault.0.chance: Input should be less than or equal to 0.9"),
        ('[[fault]]\nkind = "drop"\nchance = 0', "fault.0.chance: Input should be greater than 0"),
        ('[[fault]]\nkind = "drop"\nchance = 0.1\nms = [1, 2]', "fault.0: ms: drop takes no time"),
        ('[[fault]]\nkind = "slow"\nchance = 0.1\nms = [9, 2]', "fault.0: ms: write the shortest time first"),
        ('[[fault]]\nkind = "slow"\nchance = 0.1\nms = [1, 70000]', "fault.0.ms.1: Input should be less than"),
        ('[[fault]]\nkind = "corrupt"\nchance = 0.1\nsides = ["delivery"]', "corrupt does not strike at delivery"),
    ],
)
def test_what_no_profile_says_is_one_line_with_its_field(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "profile.toml"
    path.write_text(text)
    with pytest.raises(ChaosProfileInvalid) as refused:
        load_profile(path)
    assert says in str(refused.value) and str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ChaosProfileInvalid, match="No such file"):
        load_profile(tmp_path / "nothing.toml")


def thrown(dice: Dice, message_id: str) -> tuple[list[FaultKind], float]:
    faults, chance = dice.throw(Side.DELIVERY, message_id, "IDEA")
    return [fault.kind for fault in faults], chance.random()


@given(st.integers(), IDS, st.randoms())
def test_the_same_messages_meet_the_same_faults_in_any_order(seed: int, ids: list[str], order: object) -> None:
    profile = ChaosProfile(seed=seed, fault=ALL)
    first, again = Dice(profile, "a"), Dice(profile, "a")
    found = {one: thrown(first, one) for one in ids}
    assert {one: thrown(again, one) for one in reversed(ids)} == found


def test_seeds_agents_and_repeats_throw_again() -> None:
    profile = ChaosProfile(seed=1, fault=ALL)
    dice = Dice(profile, "a")
    throws = [thrown(dice, "m"), thrown(dice, "m"), thrown(Dice(profile, "b"), "m")]
    throws.append(thrown(Dice(profile.model_copy(update={"seed": 2}), "a"), "m"))
    assert len({chance for _, chance in throws}) == 4


def test_chances_are_kept() -> None:
    dice = Dice(ChaosProfile(fault=(Fault(kind=FaultKind.DROP, chance=0.2),)), "a")
    struck = sum(bool(thrown(dice, str(number))[0]) for number in range(5000))
    assert 850 < struck < 1150
