"""How well the relevance score keeps on-topic packets from others, on labelled messages of three domains."""

from benchmarks.relevance.judging import DOMAINS, judge
from benchmarks.support.figures import Figure, Figures

UNSEEN = "fieldwork"
"""The domain that no weight was chosen by."""


def measure_relevance(figures: Figures) -> None:
    """Report the area under the ROC curve for each domain, beside that of the former score."""
    for domain in DOMAINS:
        judged, former = judge(domain), judge(domain, is_former=True)
        for what in ("sharing", "other", "all"):
            bar = 1.0 if what == "sharing" else None
            figures.add(
                Figure(f"relevance of {domain}, {what} positives", judged.auc(what), "AUC", former.auc(what), bar)
            )
