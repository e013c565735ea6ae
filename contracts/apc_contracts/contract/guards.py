"""Guards: CEL predicates over a flat map of named facts (docs/specification/contract.md section 13).

`import cel` takes 0.2 to 0.5 seconds, so it happens at the first evaluation or check, never at import. A guard is a
pure function of the facts that it names: its results are memoised by their values, which turns the microseconds of CEL
into a dictionary lookup on the hot path.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, lru_cache
from typing import Any

from apc_contracts.contract.contract_checks import how_to_declare
from apc_contracts.contract.file import FactType
from apc_contracts.errors import ContractInvalid

FactValue = float | bool | str
Facts = Mapping[str, Any]

_CACHED_ANSWERS = 4096
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"' + r"|'(?:[^'\\\n]|\\.)*'")
_MACROS = "all exists exists_one existsOne map filter".split()
_CALL = re.compile(r"\.\s*([A-Za-z_]\w*)\s*\(")
_MACRO = re.compile(rf"\.\s*(?:{'|'.join(_MACROS)})\s*\([\s(]*([A-Za-z_]\w*)[\s)]*,")
# In a text whose strings are "": raw strings, three quotes, comments. CEL reads them otherwise than these patterns.
_UNREADABLE = re.compile(r"""//|\w""|"{3}|'""")
# Or an escape that may stand for the brace.
_COUNTED = re.compile(r"\{|\\[xXuU0-7]")
_WORD = re.compile(r"[A-Za-z_]\w*")
_OPERATOR = re.compile(r"[^a-z]*|@\w+|_\?_:_")
_UNEVALUABLE = (TypeError, ValueError, RuntimeError, LookupError, ArithmeticError)
_FUNCTIONS = frozenset({"size", "startsWith", "endsWith", "contains", "matches", "double", "int", "string", "bool"})
# Two samples per type, so that both sides of `||`, `&&` and `?:` are evaluated.
_SAMPLES: tuple[Mapping[FactType, FactValue], ...] = (
    {"float": 1.5, "bool": True, "string": "sample"},
    {"float": 0.5, "bool": False, "string": ""},
)


class Guard:
    """One predicate. `place` is its position in the contract file; `types` are the facts that it may name.

    `names` are the facts that it does name, sorted. `parts` is of how many guards a conjunction is made.
    """

    def __init__(self, text: str, place: str, types: Mapping[str, FactType], parts: int = 1) -> None:
        self.text = text
        self._parts = parts
        self.place = place
        self._types = types
        bound = macro_variables(text)
        # Read from the text, so that a memoised answer never needs CEL.
        self.names = tuple(sorted(name for name in identifiers(text) - bound if name in types))
        self._named = tuple((name, types[name]) for name in self.names)
        self._answer: Callable[[tuple[FactValue, ...]], bool] = lru_cache(_CACHED_ANSWERS)(self._evaluate)

    def holds(self, facts: Facts) -> bool:
        """Return whether the predicate is true. A fact that is missing or of the wrong type makes it false."""
        values = []
        for name, fact_type in self._named:
            value = _typed(facts.get(name), fact_type)
            if value is None:
                return False
            values.append(value)
        return self._answer(tuple(values))

    def holds_values(self, values: tuple[FactValue, ...]) -> bool:
        """Return `holds` for values already typed and in the order of `names`."""
        return self._answer(values)

    def check(self) -> None:
        """Compile the guard and check that it is usable.

        Raises:
            ContractInvalid: it does not compile, may run long, calls an unknown function, names an unknown fact, or
        cannot be evaluated to a boolean over facts of the declared types.
        """
        refuse_long_runs(self.text, self.place, self._parts)
        self._refuse_unknown_words()
        for sample in _SAMPLES:
            self._refuse_unusable(sample)

    @cached_property
    def _program(self) -> Any:
        import cel  # late: see the module's docstring

        try:
            return cel.compile(self.text)
        except ValueError as error:
            raise ContractInvalid(self.place, f"the guard does not compile: {_first_line(error)}") from error

    def _evaluate(self, values: tuple[FactValue, ...]) -> bool:
        try:
            return self._program.execute(dict(zip(self.names, values, strict=True))) is True
        except _UNEVALUABLE:
            # An expression that cannot be evaluated is not satisfied.
            return False

    def _refuse_unknown_words(self) -> None:
        for name in sorted(set(self._program.variables()) - macro_variables(self.text)):
            if name not in self._types:
                known = ", ".join(sorted(self._types))
                message = f"the guard names the unknown fact {name!r}; known here: {known}. {how_to_declare(name)}"
                raise ContractInvalid(self.place, message)
        for function in self._program.functions():
            if function not in _FUNCTIONS and not _OPERATOR.fullmatch(function):
                raise ContractInvalid(self.place, f"the guard calls the unknown function {function!r}")

    def _refuse_unusable(self, sample: Mapping[FactType, FactValue]) -> None:
        try:
            result = self._program.execute({name: sample[self._types[name]] for name in self.names})
        except _UNEVALUABLE as error:
            message = f"the guard cannot be evaluated (numbers are floats: write 2.0): {_first_line(error)}"
            raise ContractInvalid(self.place, message) from error
        if not isinstance(result, bool):
            raise ContractInvalid(self.place, f"the guard gives {type(result).__name__}, not a boolean")


def conjunction(guards: Iterable[Guard], place: str, types: Mapping[str, FactType]) -> Guard:
    """Return one guard that is true exactly when all of `guards` are; true for an empty list."""
    texts = [f"({guard.text})" for guard in guards]
    return Guard(" && ".join(texts) or "true", place, types, max(len(texts), 1))


def identifiers(text: str) -> frozenset[str]:
    """Return the words of an expression outside its string literals; fact names are among them."""
    return frozenset(_WORD.findall(_STRING.sub('""', text)))


def macro_variables(text: str) -> frozenset[str]:
    """Return the names that macros of the expression bind: they are not facts."""
    return frozenset(_MACRO.findall(_STRING.sub('""', text)))


def refuse_long_runs(text: str, place: str, parts: int = 1) -> None:
    """Refuse what may run for seconds or fill the memory in few characters: CEL has no cost limit.

    Raises:
        ContractInvalid: a string or a comment could hide such a part, a macro is inside the parentheses of another,
            `map` is called more than once in one of the `parts`, or a pattern counts repetitions.
    """
    bare = _STRING.sub('""', text)
    if _UNREADABLE.search(bare) or '"' in bare.replace('""', ""):
        message = "the guard has a comment, or a raw, byte or triple-quoted string: write plain strings, no comments"
        raise ContractInvalid(place, message)
    calls = _CALL.findall(bare)
    for name in calls:
        if name not in _MACROS and name not in _FUNCTIONS:
            raise ContractInvalid(place, f"the guard calls the unknown function {name!r}")
    _refuse_nested_macros(bare, place)
    # Each `map` may double what the one before it gave: twenty of them fill the memory.
    if calls.count("map") > parts:
        raise ContractInvalid(place, "the guard calls map twice; write it with one map")
    if "matches" in calls and _COUNTED.search(text):
        raise ContractInvalid(place, "the guard has matches and { or a coded character: write the repetition out")


def _refuse_nested_macros(bare: str, place: str) -> None:
    starts = {match.end() - 1 for match in _CALL.finditer(bare) if match.group(1) in _MACROS}
    open_parentheses: list[bool] = []
    for position, character in enumerate(bare):
        if character == "(":
            if position in starts and any(open_parentheses):
                raise ContractInvalid(place, "the guard nests one macro in another; write it without nesting")
            open_parentheses.append(position in starts)
        elif character == ")" and open_parentheses:
            open_parentheses.pop()


def _typed(value: Any, fact_type: FactType) -> FactValue | None:
    """Return the value as the declared type, None when it is missing or of another type."""
    if fact_type == "float":
        # `+ 0.0` turns -0.0 into 0.0: equal keys of the memo must mean equal facts.
        return float(value) + 0.0 if isinstance(value, int | float) and not isinstance(value, bool) else None
    if fact_type == "bool":
        return value if isinstance(value, bool) else None
    return str(value) if isinstance(value, str) else None


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
