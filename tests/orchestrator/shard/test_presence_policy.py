"""Which host is here, and which agent is silent: the pure parts."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from apc_log.queries.agents import ALIVE_WITHIN
from apc_orchestrator.judging.memory import REPORT_INTERVAL, SignsOfLife
from apc_orchestrator.shard.presence import LOOKS_WITHOUT, RETURN_SECONDS, HostLooks

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOSTS = ("h0", "h1", "h2")
Counts = dict[str, int | None]
looks_at_hosts = st.lists(
    st.dictionaries(st.sampled_from(HOSTS), st.sampled_from([None, 0, 0, 1, 2]), max_size=3), max_size=40
)


def test_a_host_appears_at_once_and_is_gone_after_two_looks() -> None:
    looks = HostLooks({})
    assert [looks.take({"h0": count}, at) for at, count in enumerate([0, 0, 1, 1, 0, 0, 0, 2])] == [
        *({}, {}, {"h0": True}, {}),
        *({}, {"h0": False}, {}, {"h0": True}),
    ]
    assert (set(looks.present), set(looks.gone)) == ({"h0"}, set[str]())


def test_a_host_that_restarts_between_two_looks_was_never_gone() -> None:
    looks = HostLooks({"h0": True})
    assert not any(looks.take({"h0": count}, at) for at, count in enumerate([0, 1, 0, 1, 0, 1]))


def test_a_broker_that_did_not_answer_leaves_hosts_time_to_come_back() -> None:
    looks = HostLooks({"h0": True, "h1": True})
    assert looks.take({"h0": None, "h1": None}, 0) == {}
    assert not any(looks.take({"h0": 0, "h1": 0}, at) for at in range(1, int(RETURN_SECONDS)))
    assert looks.take({"h0": 1, "h1": 0}, RETURN_SECONDS) == {}
    assert looks.take({"h0": 1, "h1": 0}, RETURN_SECONDS + 1) == {"h1": False}


def test_a_connection_that_is_new_leaves_hosts_time_to_come_back() -> None:
    looks = HostLooks({"h0": True}, since=100.0)
    assert not any(looks.take({"h0": 0}, 100.0 + at) for at in range(int(RETURN_SECONDS)))
    assert looks.take({"h0": 0}, 100.0 + RETURN_SECONDS) == {}
    assert looks.take({"h0": 0}, 101.0 + RETURN_SECONDS) == {"h0": False}


@given(st.dictionaries(st.sampled_from(HOSTS), st.booleans()), looks_at_hosts)
def test_changes_alternate_and_a_takeover_repeats_none(logged: dict[str, bool], counts: list[Counts]) -> None:
    """Whatever the broker says, and wherever a new lease begins with what the last one has logged."""
    for takeover in range(len(counts) + 1):
        known, looks = dict(logged), HostLooks(logged)
        for at, count in enumerate(counts):
            if at == takeover:
                looks = HostLooks(known)
            for host, is_here in looks.take(count, at).items():
                assert known.get(host, False) is not is_here, "no change is logged twice"
                known[host] = is_here
                assert bool(count[host]) is is_here, "and none without evidence"
        assert looks.present == {host for host, is_here in known.items() if is_here}


@given(looks_at_hosts)
def test_a_host_goes_only_after_as_many_empty_looks_in_a_row(counts: list[Counts]) -> None:
    looks = HostLooks(dict.fromkeys(HOSTS, True))
    empty = dict.fromkeys(HOSTS, 0)
    for at, count in enumerate(counts):
        for host, consumers in count.items():
            empty[host] = empty[host] + 1 if consumers == 0 else 0
        gone = {host for host, is_here in looks.take(count, at * RETURN_SECONDS).items() if not is_here}
        assert all(empty[host] >= LOOKS_WITHOUT for host in gone)


@given(st.lists(st.sampled_from([0, None]), max_size=20), st.integers(min_value=2, max_value=5))
def test_in_the_end_what_the_broker_says_stands(before: list[int | None], consumers: int) -> None:
    for last in (0, consumers):
        for is_here in (False, True):
            looks = HostLooks({"h0": is_here})
            for at, count in enumerate([*before, *[last] * LOOKS_WITHOUT]):
                looks.take({"h0": count}, at * (RETURN_SECONDS + 1))
            assert looks.present == ({"h0"} if last else set())


def test_signs_of_life_are_reported_every_thirty_seconds_and_news_at_once() -> None:
    signs = SignsOfLife()
    assert signs.take_due(NOW) == {}
    signs.note("a", NOW)
    assert signs.take_due(NOW) == {"a": NOW}
    soon = NOW + timedelta(seconds=1)
    signs.note("a", soon)
    assert signs.take_due(soon) == {}, "nothing new is told of an agent that lives"
    signs.note("b", soon)
    assert signs.take_due(soon) == {"a": soon, "b": soon}, "b was silent, and a goes along"
    signs.note("a", NOW + REPORT_INTERVAL)
    assert signs.take_due(NOW + REPORT_INTERVAL) == {}
    assert signs.take_due(soon + REPORT_INTERVAL) == {"a": NOW + REPORT_INTERVAL}
    assert signs.take_due(soon + 2 * REPORT_INTERVAL) == {}, "who is silent is not reported"


def test_a_report_that_did_not_get_through_is_repeated() -> None:
    signs = SignsOfLife()
    signs.note("a", NOW)
    signs.give_back(signs.take_due(NOW))
    assert signs.take_due(NOW + REPORT_INTERVAL) == {"a": NOW}


def test_what_was_reported_before_counts_unless_something_newer_is_known() -> None:
    signs = SignsOfLife()
    signs.note("a", NOW)
    signs.recall({"a": NOW - ALIVE_WITHIN, "b": NOW, "c": NOW - ALIVE_WITHIN})
    assert [signs.is_silent(agent, NOW) for agent in "abcd"] == [False, False, True, True]
