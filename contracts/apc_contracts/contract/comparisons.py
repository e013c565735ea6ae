"""Rules that are comparisons alone, judged without CEL: a gate judges most packets by such.

`content.risk == "low" || count("acts") < 5` means in Python what it means in CEL, once CEL has checked its types and
every value is there. Everything else belongs to CEL: other functions and methods, macros, `?:`, division, whole numbers
that could overflow, escapes in texts. Only "kept" is taken from here; whatever is not kept CEL judges.
"""

import operator
from collections.abc import Callable, Mapping
from typing import Any

from apc_contracts.contract.expressions import Expression, Kind

Give = Callable[[Mapping[str, Any]], Any]
"""Returns a value, of values under the names of CEL. Raises KeyError where one is missing."""

_RELATIONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_SUMS: Mapping[str, Callable[[float, float], float]] = {"+": operator.add, "-": operator.sub}
_SCALARS = frozenset({"string", "number", "integer", "boolean"})
_LISTS: Mapping[Kind, Kind] = {"strings": "string", "numbers": "number", "integers": "integer", "booleans": "boolean"}


class _NotPlain(Exception):
    """The expression has something that belongs to CEL."""


def comparison_of(when: Expression | None, require: Expression) -> Give | None:
    """Return what says whether a rule is kept, if it is comparisons alone; None for any other rule."""
    try:
        needed = _Reader(require).whole()
        asked = None if when is None else _Reader(when).whole()
    except (_NotPlain, RecursionError):
        return None
    return needed if asked is None else lambda values: not asked(values) or needed(values)


class _Reader:
    """Reads the words of one expression; each part is (what gives its value, its type)."""

    def __init__(self, expression: Expression) -> None:
        self._words = expression.words
        self._kinds = expression.cel[1]
        self._at = 0

    def whole(self) -> Give:
        """Return what gives the whole expression."""
        give, kind = self._either()
        if self._at < len(self._words) or kind != "boolean":
            raise _NotPlain
        return give

    def _either(self) -> tuple[Give, Kind]:
        return self._joined("||", self._both, _any)

    def _both(self) -> tuple[Give, Kind]:
        return self._joined("&&", self._relation, _all)

    def _joined(
        self, word: str, part: Callable[[], tuple[Give, Kind]], join: Callable[[list[Give]], Give]
    ) -> tuple[Give, Kind]:
        first, kind = part()
        parts = [first]
        while self._take(word):
            give, other = part()
            if kind != "boolean" or other != "boolean":
                raise _NotPlain
            parts.append(give)
        return (first, kind) if len(parts) == 1 else (join(parts), "boolean")

    def _relation(self) -> tuple[Give, Kind]:
        left, kind = self._sum()
        word = self._word()
        if word == "in":
            self._at += 1
            return _related(operator.contains, self._list(kind), left), "boolean"
        if word not in _RELATIONS:
            return left, kind
        self._at += 1
        right, other = self._sum()
        if kind != other or kind not in _SCALARS or self._word() in (*_RELATIONS, "in"):
            raise _NotPlain
        return _related(_RELATIONS[word], left, right), "boolean"

    def _sum(self) -> tuple[Give, Kind]:
        give, kind = self._one()
        while (word := self._word()) in _SUMS:
            self._at += 1
            right, other = self._one()
            if kind != "number" or other != "number":
                raise _NotPlain
            give = _related(_SUMS[word], give, right)
        return give, kind

    def _one(self) -> tuple[Give, Kind]:
        if self._take("!"):
            give, kind = self._one()
            if kind != "boolean":
                raise _NotPlain
            return lambda values: not give(values), "boolean"
        if self._take("("):
            found = self._either()
            self._expect(")")
            return found
        text, what = self._next()
        if text in self._kinds:
            return operator.itemgetter(text), self._kinds[text]
        value, kind = _literal(text, what)
        return lambda values: value, kind

    def _list(self, kind: Kind) -> Give:
        """Return the list behind `in`: a reading, or literals of this type."""
        if kind not in _SCALARS:
            raise _NotPlain
        if not self._take("["):
            give, listed = self._one()
            if _LISTS.get(listed) != kind:
                raise _NotPlain
            return give
        items: list[Any] = []
        while not self._take("]"):
            item, own = _literal(*self._next())
            if own != kind:
                raise _NotPlain
            items.append(item)
            if self._word() != "]":
                self._expect(",")
        return lambda values: items

    def _word(self) -> str:
        return self._words[self._at][0] if self._at < len(self._words) else ""

    def _next(self) -> tuple[str, str]:
        if self._at >= len(self._words):
            raise _NotPlain
        self._at += 1
        return self._words[self._at - 1]

    def _take(self, word: str) -> bool:
        is_next = self._word() == word
        self._at += is_next
        return is_next

    def _expect(self, word: str) -> None:
        if not self._take(word):
            raise _NotPlain


def _any(parts: list[Give]) -> Give:
    def give(values: Mapping[str, Any]) -> bool:
        for part in parts:
            if part(values):
                return True
        return False

    return give


def _all(parts: list[Give]) -> Give:
    def give(values: Mapping[str, Any]) -> bool:
        for part in parts:
            if not part(values):
                return False
        return True

    return give


def _related(relation: Callable[[Any, Any], Any], left: Give, right: Give) -> Give:
    return lambda values: relation(left(values), right(values))


def _literal(text: str, what: str) -> tuple[Any, Kind]:
    if what == "text" and "\\" not in text:
        return text[1:-1], "string"
    if what == "number":
        return (int(text), "integer") if text.isdecimal() else (float(text), "number")
    if text in ("true", "false"):
        return text == "true", "boolean"
    raise _NotPlain
