"""The relevance score on labelled messages (benchmarks/relevance), over 200 messages in five orders."""

import pytest
from benchmarks.relevance.judging import DOMAINS, judge
from benchmarks.relevance.labelled import read_domain


@pytest.mark.long
@pytest.mark.parametrize("domain", DOMAINS)
def test_on_topic_and_off_topic_stay_apart(domain: str) -> None:
    judged, former = judge(domain), judge(domain, is_former=True)
    assert judged.auc("sharing") >= 0.9
    for what in ("sharing", "other", "all"):
        assert judged.auc(what) > former.auc(what)


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_third_of_the_positives_share_no_word_with_the_focus(domain: str) -> None:
    _, items = read_domain(domain)
    positive = [item for item in items if item.is_positive]
    assert len(items) >= 200
    assert sum(not item.shares for item in positive) >= len(positive) // 3
