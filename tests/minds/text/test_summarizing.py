"""The extractive summarizer, and what is done with one that does not keep to its budget."""

from hypothesis import given
from hypothesis import strategies as st
from tests.minds.context.windows import CONTENTS, ticking

from apc_minds.context import ContextProjector, ContextWindow, ExtractiveSummarizer
from apc_minds.text import ELLIPSIS, EstimatedTokens, cut

COUNT = EstimatedTokens().count
TEXT = "The pump failed at noon. Nobody saw it. The spare came at two. It leaked as well. We order a third one."


@given(CONTENTS, st.integers(1, 40))
def test_a_summary_fits_and_is_made_of_the_text(text: str, max_tokens: int) -> None:
    summary = ExtractiveSummarizer().extract(text, max_tokens)
    assert COUNT(summary) <= max_tokens
    assert ExtractiveSummarizer().extract(text, max_tokens) == summary
    if COUNT(text) <= max_tokens:
        assert summary == text
    for part in summary.split(f" {ELLIPSIS} "):
        assert " ".join(part.removesuffix(ELLIPSIS).split()) in " ".join(text.split())


def test_the_opening_and_the_end_say_most() -> None:
    assert ExtractiveSummarizer().extract(TEXT, 16) == f"The pump failed at noon. {ELLIPSIS} We order a third one."
    assert ExtractiveSummarizer().extract(TEXT, 8) == "The pump failed at noon."
    assert ExtractiveSummarizer().extract(TEXT, 4) == f"The pump fail{ELLIPSIS}"


@given(CONTENTS, st.integers(0, 20))
def test_a_cut_text_fits(text: str, max_tokens: int) -> None:
    assert COUNT(cut(text, max_tokens, EstimatedTokens())) <= max_tokens


class _Talker:
    """A summarizer that answers with more than it was given, and with what no store keeps."""

    async def summarize(self, text: str, max_tokens: int) -> str:
        return f"{text}\0{text}\ud800{text}"


async def test_a_summary_that_does_not_fit_is_made_to_fit() -> None:
    window = ContextWindow(100, clock=ticking())
    window.append("user", "go on")
    window.append("system", TEXT * 2)
    result = await ContextProjector(summarizer=_Talker()).compress(window, 0.1)
    summary = result.window.turn("t2")
    assert (summary.tokens <= 32, result.summarized_count, result.target_met) == (True, 1, False)
    assert "\0" not in summary.content
    assert summary.to_bytes()
