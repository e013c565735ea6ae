"""Words that say nothing of what an English text is about: they weigh nothing in a comparison."""

from functools import cache
from typing import Final

from apc_agents.text.word_stems import stemmer_of

_ENGLISH: Final = """
a about above after again against all almost along already also although always am among an and another any anybody
anything are around as ask at away back be became because become been before began begin behind being below beside
best better between big both bring but buy by call came can cannot come could day did different do does done down
during each early either else end enough even ever every everybody everything far few find first five for forty found
four from full gave get give go good got great had half has have he her here hers him his hold hour how hundred i if
in into is it its just keep kept know last late later least leave left less let like little long look lost made make
man many may me mean measure might mine minute month more morning most move much must my near need never new next nine
no nobody none nor not nothing now of off often old on once one only open or other our out over own part people place
please put quite reach read really right said same saw say second see seem seven several she should show since six
small so some somebody something soon still stop such take tell ten than that the their them then there these they
thing think third this those though thousand three through time to today together tomorrow too took toward turn twenty
two under until up upon us use very wait want was way we week well went were what when where whether which while who
whole why will with within without word work would write year yes yesterday yet you your
"""


@cache
def common_stems(language: str) -> frozenset[str]:
    """Return the stems of the common words of a language; none where there is no list."""
    return stemmer_of(language).stems(_ENGLISH) if language == "english" else frozenset()
