"""Expressions of rules: CEL over readings, plain values that are computed before CEL runs.

`content.risk == "high" && authors("finding/1", "service") >= 2` has two readings: the field `content.risk` and the call
`authors("finding/1", "service")`. CEL sees a variable for each, of a declared type, so that a misspelled name, a text
beside a number and an endless loop are refused when the contract is checked. Nothing here reads a packet:
`apc_contracts.admission.rules.team` computes the values. Source: docs/reference/rules.md.
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from itertools import accumulate
from typing import Any, Final, Literal, NoReturn

from pydantic import BaseModel, ConfigDict, Field

from apc_contracts.errors import ContractInvalid
from apc_contracts.vocabulary import PacketType, Right

MAX_TEXT: Final = 4_096
"""Characters of a text that a rule reads, where its schema says no maxLength."""
MAX_ITEMS: Final = 256
"""Items of a list that a rule reads, where its schema says no maxItems."""
MAX_COST: Final = 400_000
"""What all rules of a packet may cost together, in steps of some ten nanoseconds (see `Expression.cost`)."""

Kind = Literal["string", "number", "integer", "boolean", "strings", "numbers", "integers", "booleans", "objects"]


class FieldType(BaseModel):
    """The type of a value that rules read. Texts and lists have a bound: a longer one is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    kind: Kind
    optional: bool = Field(default=False, strict=True)
    """It may be absent, so that a rule must ask `has()` first."""
    length: int = Field(default=MAX_TEXT, ge=0, strict=True)
    """Characters of a text, or of each text of a list."""
    items: int = Field(default=MAX_ITEMS, ge=0, strict=True)
    fields: tuple[str, ...] = ()
    """Of a list of objects: the names that its items may have."""
    values: tuple[str, ...] = ()
    """Of a text: the only ones that it may have; empty = any."""

    @property
    def cost(self) -> int:
        """Characters that one look at the whole value may meet."""
        if self.kind == "string":
            return max(self.length, 1)
        return max(self.items, 1) * (max(self.length, 1) if self.kind in ("strings", "objects") else 1)


def _plain(kind: Kind) -> FieldType:
    return FieldType(kind=kind, length=128, items=1_000)


def _one_of(values: Iterable[str]) -> FieldType:
    return FieldType(kind="string", length=128, values=tuple(values))


BUDGETS = ("packets", "tokens", "cost")
WORDS: Mapping[str, FieldType] = {
    "packet.type": _one_of(PacketType),
    **{f"packet.{name}": _plain("string") for name in ("schema", "id")},
    "packet.confidence": _plain("number"),
    **{f"packet.{name}": _plain("strings") for name in ("to", "to_roles", "to_swarms")},
    **{f"sender.{name}": _plain("string") for name in ("id", "role", "swarm")},
    "sender.rights": FieldType(kind="strings", length=128, items=64, values=tuple(Right)),
    "session.state": _plain("string"),
    "session.round": _plain("integer"),
    "session.age_s": _plain("number"),
    **{f"{place}.{name}": _plain("number") for place in ("spent", "left") for name in BUDGETS},
    "local.hour": _plain("integer"),
    "local.weekday": _plain("integer"),
}
"""What every rule may read beside `content`. Weekdays are 1 (Monday) to 7; an absent budget has no `left`."""
EFFECTS = ("absent", "claimed", "made", "unknown", "settled")
"""What `effect(name)` gives."""
_ROOTS = frozenset({"content", *(word.partition(".")[0] for word in WORDS)})


@dataclass(frozen=True, slots=True)
class Function:
    """A function of rules: its arguments are texts and whole numbers written out, so it is one reading."""

    gives: Kind
    arguments: tuple[str, ...]
    """`schema`, `field`, `id`, `role`, `swarm`, `counter`, `effect` or `n`."""
    needed: int
    """How many of them must be given."""


FUNCTIONS: Mapping[str, Function] = {
    "cited": Function("integer", ("schema",), 1),
    "authors": Function("integer", ("schema", "field"), 1),
    "cites": Function("boolean", ("id",), 1),
    "cites_role": Function("boolean", ("role",), 1),
    "cites_swarm": Function("boolean", ("swarm",), 1),
    "approved_by": Function("boolean", ("role", "n"), 1),
    "count": Function("integer", ("counter",), 1),
    "sum": Function("number", ("counter",), 1),
    "effect": Function("string", ("effect",), 1),
}
_METHODS = frozenset({"size", "startsWith", "endsWith", "contains", "matches"})
_MACROS = frozenset({"all", "exists", "exists_one", "filter"})
_CASTS = frozenset({"size", "double", "int", "string"})
_CONSTANTS = frozenset({"true", "false", "in"})
_OPERATORS = {"and": "&&", "or": "||", "not": "!"}
_TEXTS = frozenset({"string", "strings", "objects"})
_SCANNING = frozenset({"contains", "matches", "+", "<", "<=", ">", ">=", *_CASTS})
"""What looks at, or copies, each character of a text."""
_COMPARING = frozenset({"==", "!=", "in", "startsWith", "endsWith", "size"})
_COMPARED = 16
"""Characters that a comparison takes at a step."""
_STEP = 40
_PATTERN_COST = 8_000
"""A pattern is compiled at each look."""
_PATTERN_LETTER = 1_000
"""Of each of its letters, as `.` or `[^k]` take it."""
_FREE = frozenset({"(", ")", "[", "]", ",", ".", ":", "content", "packet", "sender", "session"})

_TOKEN = re.compile(
    r"""(?P<space>\s+)
    | (?P<text>"(?:[^"\\\n]|\\["\\/nrt'])*"|'(?:[^'\\\n]|\\["\\/nrt'])*')
    | (?P<number>(?:\d+\.\d+|\d+)(?:[eE][+-]?\d+)?(?![\w.]))
    | (?P<name>[A-Za-z_]\w*)
    | (?P<operator>&&|\|\||==|!=|<=|>=|[-+*/%<>!?:()\[\],.])
    """,
    re.VERBOSE,
)
_MISMATCH = re.compile(r"ERROR: <input>:1:(\d+): (.+)")
_NO_OVERLOAD = re.compile(r"found no matching overload for '(?:_(.+)_|(.+))' applied to '\((.*)\)'")
_CEL_TYPES: Mapping[str, str] = {"string": "STRING", "number": "DOUBLE", "integer": "INT", "boolean": "BOOL"}


@dataclass(frozen=True, slots=True)
class Token:
    """A word of an expression: its kind (text, number, name, operator), and where it stands in the whole text."""

    kind: str
    text: str
    start: int


@dataclass(frozen=True, slots=True)
class Reading:
    """A value that an expression reads: a field or word (`content.risk`), `has(…)` of one, or a call."""

    text: str
    """As it is written in one way: `authors("finding/1", "service")`."""
    gives: FieldType
    name: str
    """`content.risk`, or the function: `authors`, `has`."""
    arguments: tuple[str | int, ...] = ()

    is_content: bool = field(init=False, compare=False, repr=False)
    """Whether the value follows from the packet's own content, which its body keeps."""
    variable: str = field(init=False, compare=False, repr=False)
    """The name under which CEL knows it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_content", self.name.startswith("content.") or self.name == "has")
        # Each name stands for one reading: approved_by("lead", 2) is not approved_by("lead_2").
        made = "_" + re.sub(r"[^A-Za-z0-9]", lambda found: f"_{ord(found.group()):x}_", self.text)
        object.__setattr__(self, "variable", self.text if self.name == self.text else made)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What the expressions of one rule may name. None for a list = it is not known here, and any name will do."""

    content: Mapping[str, FieldType]
    """Path of a field without `content.` -> its type."""
    schemas: tuple[str, ...] | None = None
    kept: Mapping[str, Sequence[str]] = field(default_factory=dict)
    roles: tuple[str, ...] | None = None
    counters: Mapping[str, Kind | None] = field(default_factory=dict)
    """Name -> the type of the amounts that it adds (`sum`); None = it counts (`count`)."""
    has_content: bool = True
    """Whether the rule is for schemas, so that there is a content to read."""
    is_local: bool = False
    """For the `when` of a counter: it reads the packet, its sender and its content alone."""


class Expression:
    """One expression of a contract; `place` is its position in the file, for errors.

    Raises ContractInvalid, with line and column, for a name that is unknown or a construct that is not allowed; types
    are checked by `check`, which imports CEL.
    """

    def __init__(self, text: str, place: str, vocabulary: Vocabulary, context: str = "") -> None:
        """Read `text`; `context` is an expression that holds already, so that its has() count."""
        self.text = text
        self._context = "".join(context.split())
        self._place = place
        self._vocabulary = vocabulary
        self._tokens = list(self._split())
        self._readings: dict[str, Reading] = {}
        self._compared: dict[str, set[str]] = {}
        self._parts: list[tuple[str, Token]] = []
        """What CEL gets: (text, the token where it stands)."""
        self._bound: dict[str, FieldType] = {}
        self._open_macros: list[int] = []
        self._read()
        self._names = {reading.text: reading.variable for reading in self._readings.values()}

    @cached_property
    def readings(self) -> tuple[Reading, ...]:
        """What it reads, in the order of the text, each once."""
        return tuple(self._readings.values())

    def compared_with(self, reading: str) -> frozenset[str]:
        """Return the texts that stand beside a reading: `fixer` for `sender.role == "fixer"`."""
        return frozenset(self._compared.get(reading, ()))

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Return whether it gives exactly true. A reading without a value is an error, and an error does not hold."""
        given = {name: values[text] for text, name in self._names.items() if text in values}
        return is_true(self._program, given)

    def fails(self, values: Mapping[str, Any]) -> bool:
        """Return whether it gives exactly false, and no error."""
        given = {name: values[text] for text, name in self._names.items() if text in values}
        try:
            return self._program.eval(data=given).value() is False
        except (RuntimeError, ValueError, TypeError):
            return False

    def check(self) -> None:
        """Check types and cost. Raises ContractInvalid."""
        kind = self._program.return_type().name()
        if kind != "BOOL":
            self._refuse(f"it gives {kind.lower()}, not true or false: compare it with something", self._tokens[0])
        cost = self.cost
        if cost > MAX_COST:
            message = (
                f"it may cost {cost:,} steps, {MAX_COST:,} are allowed: give the texts and lists that it reads a "
                "maxLength and maxItems in their schema, or say it with fewer operations"
            )
            raise ContractInvalid(self._place, message)

    @property
    def cost(self) -> int:
        """The most steps that it takes, of some ten nanoseconds: its operations on what they read at its longest."""
        kinds = [reading.gives for reading in self._readings.values()]
        text = max((kind.length for kind in kinds if kind.kind in _TEXTS), default=1)
        whole = max((kind.cost for kind in kinds), default=1)
        items = max((kind.items for kind in kinds if kind.kind not in _CEL_TYPES), default=1)
        total, depth, macros = sum(map(_cost_of_giving, kinds)), 0, list[int]()
        for index, token in enumerate(self._tokens):
            if token.text == "(":
                depth += 1
                if self._is_macro(index - 1):
                    macros.append(depth)
            elif token.text == ")":
                if macros and macros[-1] == depth:
                    macros.pop()
                depth -= 1
            elif token.text in _SCANNING:
                once = _STEP + 4 * text
                if token.text == "matches" and self._kind(index + 2) == "text":
                    once = _PATTERN_COST + _PATTERN_LETTER * len(self._tokens[index + 2].text) + 8 * text
                total += once * (items if macros else 1)
            elif token.text in _COMPARING:
                is_over_list = token.text in ("in", "==", "!=") and not macros
                once = _STEP + (whole if is_over_list else text) // _COMPARED + (items if is_over_list else 0)
                total += once * (items if macros else 1)
            elif token.kind in ("operator", "name") and token.text not in _FREE:
                total += _STEP * (items if macros or token.text in _MACROS else 1)
        return total

    @property
    def cel(self) -> tuple[str, Mapping[str, Kind]]:
        """What CEL gets: the text over variables, and their types."""
        text = " ".join(word for word, _ in self.words)
        return text, {self._names[reading.text]: reading.gives.kind for reading in self.readings}

    @property
    def words(self) -> tuple[tuple[str, str], ...]:
        """The words of this text, each with its kind (`Token.kind`)."""
        return self._compiled[1]

    # Reading the text: tokens, then names and calls.

    def _split(self) -> Iterator[Token]:
        at = 0
        while at < len(self.text):
            match = None if self.text.startswith(("//", "#"), at) else _TOKEN.match(self.text, at)
            if match is None:
                found = self.text[at : at + 12].split()[0]
                what = "a comment" if found.startswith(("//", "#")) else f"{found!r}"
                self._refuse(f"{what} cannot be read: write names, numbers, plain strings and operators", None, at)
            if match.lastgroup != "space":
                yield Token(str(match.lastgroup), match.group(), at)
            at = match.end()

    def _read(self) -> None:
        if not self._tokens:
            raise ContractInvalid(self._place, "it is empty: write an expression")
        index = 0
        open_macros = self._open_macros
        depth = 0
        while index < len(self._tokens):
            token = self._tokens[index]
            if token.kind == "name" and not self._is(index - 1, "."):
                index = self._read_name(index)
                continue
            if token.text == "(":
                depth += 1
                if self._is_macro(index - 1):
                    if open_macros:
                        self._refuse("a macro in a macro may run long: write it without nesting", token)
                    open_macros.append(depth)
            elif token.text == ")":
                if open_macros and open_macros[-1] == depth:
                    open_macros.pop()
                depth -= 1
            elif token.text == "+" and open_macros:
                self._refuse("no + inside a macro: texts and lists would grow", token)
            elif token.kind == "name" and self._is(index + 1, "("):
                self._check_method(index)
            self._parts.append((token.text, token))
            index += 1

    def _read_name(self, index: int) -> int:
        """Take a name, a chain or a call that begins here; return the index behind it."""
        token = self._tokens[index]
        if self._is(index + 1, "("):
            if token.text == "has":
                return self._read_has(index)
            if token.text in FUNCTIONS:
                return self._read_call(index)
            if token.text not in _CASTS:
                self._refuse_name("function", token, [*FUNCTIONS, *_CASTS, "has"])
        elif token.text in _ROOTS:
            reading, behind = self._read_chain(index)
            if self._open_macros and _is_list(reading.gives.kind):
                self._refuse(f"{reading.text} is a list, and a list in a macro may run long: ask outside", token)
            if reading.gives.optional and not self._asks_for(reading):
                self._refuse(f"{reading.text} may be absent: ask has({reading.text}) && … first", token)
            self._note(reading, token)
            self._check_values(reading, index, behind)
            return behind
        elif token.text in self._bound or self._binds(index):
            return self._read_item(index)
        elif token.text in _OPERATORS:
            self._refuse(f"there is no {token.text!r}: write {_OPERATORS[token.text]}", token)
        elif token.text not in _CONSTANTS:
            self._refuse_name("name", token, sorted({*_ROOTS, *FUNCTIONS}))
        self._parts.append((token.text, token))
        return index + 1

    def _read_chain(self, index: int) -> tuple[Reading, int]:
        """Return the reading of `content.a.b` or `packet.to`, and the index behind it."""
        names, at = [self._tokens[index].text], index + 1
        while self._is(at, ".") and self._kind(at + 1) == "name" and not self._is(at + 2, "("):
            names.append(self._tokens[at + 1].text)
            at += 2
        path, token = ".".join(names), self._tokens[index]
        if names[0] != "content":
            if self._vocabulary.is_local and names[0] not in ("packet", "sender"):
                self._refuse(f"a counter reads the packet and its sender alone, not {path}", token)
            if path not in WORDS:
                self._refuse_name("word", Token("name", path, token.start), list(WORDS))
            roles = self._vocabulary.roles
            if path in ("sender.role", "packet.to_roles") and roles is not None:
                return Reading(path, WORDS[path].model_copy(update={"values": roles}), path), at
            return Reading(path, WORDS[path], path), at
        if not self._vocabulary.has_content:
            self._refuse("there is no content to read: name a schema in `for`", token)
        known = {f"content.{name}": kind for name, kind in self._vocabulary.content.items()}
        if path not in known:
            self._refuse_name("field", Token("name", path, token.start), list(known))
        return Reading(path, known[path], path), at

    def _read_has(self, index: int) -> int:
        token = self._tokens[index]
        if self._kind(index + 2) != "name" or self._tokens[index + 2].text != "content":
            self._refuse("has() asks for a field of the content: has(content.note)", token)
        reading, behind = self._read_chain(index + 2)
        if not self._is(behind, ")"):
            self._refuse("has() asks for one field: has(content.note)", token)
        self._note(Reading(f"has({reading.text})", _plain("boolean"), "has", (reading.text,)), token)
        return behind + 1

    def _read_call(self, index: int) -> int:
        token = self._tokens[index]
        function, arguments, at = FUNCTIONS[token.text], list[str | int](), index + 2
        while not self._is(at, ")"):
            if self._kind(at) not in ("text", "number"):
                self._refuse(f"{token.text}() takes texts in quotes and whole numbers, written out", token)
            arguments.append(_literal(self._tokens[at]))
            at += 1
            if self._is(at, ",") and not self._is(at + 1, ")"):
                at += 1
            elif not self._is(at, ")"):
                self._refuse(f"{token.text}() has no end: close it with )", token)
        if not function.needed <= len(arguments) <= len(function.arguments):
            self._refuse(f"{token.text}() takes {' and '.join(function.arguments)}", token)
        for what, argument in zip(function.arguments, arguments, strict=False):
            self._check_argument(what, argument, token, arguments)
        if self._vocabulary.is_local:
            self._refuse(f"a counter reads the packet and its sender alone, not {token.text}()", token)
        written = ", ".join(f'"{one}"' if isinstance(one, str) else str(one) for one in arguments)
        adds = self._vocabulary.counters.get(str(arguments[0])) if token.text == "sum" else None
        gives = _one_of(EFFECTS) if token.text == "effect" else _plain(adds or function.gives)
        reading = Reading(f"{token.text}({written})", gives, token.text, tuple(arguments))
        self._note(reading, token)
        self._check_values(reading, index, at + 1)
        return at + 1

    def _check_values(self, reading: Reading, first: int, behind: int) -> None:
        """Refuse a text beside this reading, which stands from `first` to `behind`, that it can never be equal to."""
        near: list[int] = []
        if self._is(behind, "==") or self._is(behind, "!="):
            near.append(behind + 1)
        if self._is(first - 1, "==") or self._is(first - 1, "!=") or self._is(first - 1, "in"):
            near.append(first - 2)
        if self._is(behind, "in") and self._is(behind + 1, "["):
            near += range(behind + 2, len(self._tokens))
        for index in near:
            if self._is(index, "]"):
                break
            if self._kind(index) == "text":
                text, values = str(_literal(self._tokens[index])), reading.gives.values
                self._compared.setdefault(reading.text, set()).add(text)
                if values and text not in values:
                    self._refuse_name("value", Token("text", text, self._tokens[index].start), values)

    def _check_argument(self, what: str, argument: str | int, token: Token, arguments: list[str | int]) -> None:
        words, at = self._vocabulary, Token("text", str(argument), token.start)
        if (what == "n") != isinstance(argument, int):
            self._refuse(f"{token.text}(): {what} is {'a whole number' if what == 'n' else 'a text'}", token)
        if what == "n" and not 1 <= int(argument) <= 16:
            self._refuse(f"{token.text}(): 1 to 16 people can be asked", token)
        if what == "schema" and words.schemas is not None and argument not in words.schemas:
            self._refuse_name("schema", at, list(words.schemas))
        if what == "role" and words.roles is not None and argument not in words.roles:
            self._refuse_name("role", at, list(words.roles))
        if what == "field":
            kept = list(words.kept.get(str(arguments[0]), ()))
            if argument not in kept:
                hint = f"write keep: {{{arguments[0]}: [{argument}]}}"
                self._refuse(f"the field {argument!r} of {arguments[0]} is not kept: {hint}", token)
            if argument not in words.content:
                self._refuse(f"the content has no field {argument!r} to compare with that of {arguments[0]}", token)
        if what == "counter":
            fitting = [name for name, adds in words.counters.items() if (adds is not None) == (token.text == "sum")]
            if argument in words.counters and argument not in fitting:
                other = "count" if token.text == "sum" else "sum"
                self._refuse(
                    f"{argument} {'counts packets' if other == 'count' else 'adds amounts'}: use {other}()", token
                )
            if argument not in fitting:
                self._refuse_name(f"counter for {token.text}()", at, fitting)

    def _read_item(self, index: int) -> int:
        """Take the name that a macro has bound, and a field of it."""
        token = self._tokens[index]
        self._parts.append((token.text, token))
        kind = self._bound[token.text]
        if self._is(index + 1, ".") and self._kind(index + 2) == "name" and not self._is(index + 3, "("):
            item = self._tokens[index + 2]
            if kind.kind != "objects" or item.text not in kind.fields:
                self._refuse_name("field", item, list(kind.fields))
            self._parts += [(".", self._tokens[index + 1]), (item.text, item)]
            return index + 3
        return index + 1

    def _binds(self, index: int) -> bool:
        """Return whether a macro binds this name: `content.tags.exists(tag, …)`."""
        if not (self._is(index - 1, "(") and self._is_macro(index - 2) and self._is(index + 1, ",")):
            return False
        last = self._parts[-4][0] if len(self._parts) >= 4 else ""
        found = next((one for one in self._readings.values() if one.variable == last), None)
        self._bound[self._tokens[index].text] = _plain("objects") if found is None else found.gives
        return True

    def _check_method(self, index: int) -> None:
        token = self._tokens[index]
        if token.text not in _METHODS and token.text not in _MACROS:
            self._refuse_name("method", token, sorted(_METHODS | _MACROS))
        if token.text == "matches" and (
            self._kind(index + 2) != "text" or not self._is(index + 3, ")") or "{" in self._tokens[index + 2].text
        ):
            self._refuse("matches() takes a pattern written out, without {}", token)
        if token.text == "matches" and re.search(r"\\\\[pP]", self._tokens[index + 2].text):
            self._refuse("matches() takes no \\\\p, which takes long to read: write the letters, as [A-Za-z]", token)

    def _asks_for(self, reading: Reading) -> bool:
        text = "".join(token.text for token in self._tokens)
        return f"has({reading.text})" in text or f"has({reading.text})" in self._context

    def _note(self, reading: Reading, token: Token) -> None:
        self._readings.setdefault(reading.text, reading)
        self._parts.append((reading.variable, token))

    def _is(self, index: int, text: str) -> bool:
        return 0 <= index < len(self._tokens) and self._tokens[index].text == text

    def _kind(self, index: int) -> str:
        return self._tokens[index].kind if 0 <= index < len(self._tokens) else ""

    def _is_macro(self, index: int) -> bool:
        return index > 0 and self._tokens[index].text in _MACROS and self._is(index - 1, ".")

    # CEL.

    @property
    def _program(self) -> Any:
        return self._compiled[0]

    @cached_property
    def _compiled(self) -> tuple[Any, tuple[tuple[str, str], ...]]:
        environment = environment_of({self._names[reading.text]: reading.gives.kind for reading in self.readings})
        parts = list(self._parts)
        for _ in range(len(parts) + 1):
            text = " ".join(part for part, _ in parts)
            try:
                return environment.compile(text), tuple((part, token.kind) for part, token in parts)
            except RuntimeError as error:
                self._mend_or_refuse(str(error), parts)
        raise ContractInvalid(self._place, "it cannot be compiled")

    def _mend_or_refuse(self, error: str, parts: list[tuple[str, Token]]) -> None:
        """Write each whole number beside a decimal one as a decimal one, or raise what CEL says.

        All of one compilation at once: the gate compiles what it registers, and must not stall.
        """
        matches = list(_MISMATCH.finditer(error))
        if not matches:
            raise ContractInvalid(self._place, f"it does not compile: {error.splitlines()[0]}")
        starts = list(accumulate((len(text) + 1 for text, _ in parts), initial=0))
        for match in matches:
            at = bisect_right(starts, int(match.group(1)) - 1) - 1
            said = match.group(2).removesuffix(" [INVALID_ARGUMENT]")
            if not _mend(said, at, parts):
                self._refuse(_in_words(said), parts[min(at, len(parts) - 1)][1])

    # Errors.

    def _refuse_name(self, what: str, token: Token, known: Sequence[str]) -> NoReturn:
        close = get_close_matches(token.text, known, n=1)
        meant = f": do you mean {close[0]}?" if close else f"; known: {', '.join(sorted(known)) or 'none'}"
        self._refuse(f"unknown {what} {token.text}{meant}", token)

    def _refuse(self, message: str, token: Token | None, start: int = 0) -> NoReturn:
        at = start if token is None else token.start
        line, column = self.text.count("\n", 0, at) + 1, at - (self.text.rfind("\n", 0, at) + 1) + 1
        raise ContractInvalid(self._place, f"line {line}, column {column}: {message}")


def environment_of(variables: Mapping[str, Kind]) -> Any:
    """Return CEL with these variables."""
    from cel_expr_python import cel  # late: guards and other commands need none of it

    return cel.NewEnv(variables={name: _cel_type(cel.Type, kind) for name, kind in variables.items()})


def is_true(program: Any, given: Mapping[str, Any]) -> bool:
    """Return whether a compiled expression gives exactly true; an error does not."""
    try:
        return program.eval(data=given).value() is True
    except (RuntimeError, ValueError, TypeError):
        return False


def _literal(token: Token) -> str | int:
    if token.kind == "number":
        return int(token.text) if token.text.isdecimal() else token.text
    return re.sub(r"\\(.)", r"\1", token.text[1:-1])


def _cost_of_giving(kind: FieldType) -> int:
    """Return what it costs to hand a value to CEL: its characters, and each object of a list."""
    return kind.cost // _COMPARED + (kind.items * 5 * _STEP if kind.kind == "objects" else 0)


def _is_list(kind: Kind) -> bool:
    return kind.endswith("s")


def _cel_type(types: Any, kind: Kind) -> Any:
    if kind == "objects":
        return types.List(types.Map(types.STRING, types.DYN))
    if _is_list(kind):
        return types.List(getattr(types, _CEL_TYPES[kind.removesuffix("s")]))
    return getattr(types, _CEL_TYPES[kind])


def _mend(said: str, at: int, parts: list[tuple[str, Token]]) -> bool:
    """Return whether a whole number stood beside the operator at `at`, where a decimal one is needed; write it so."""
    kinds = _NO_OVERLOAD.search(said)
    if kinds is None or set(kinds.group(3).split(", ")) != {"double", "int"}:
        return False
    for near in (at - 1, at + 1):
        if 0 <= near < len(parts) and parts[near][1].kind == "number" and parts[near][0].isdecimal():
            parts[near] = (f"{parts[near][0]}.0", parts[near][1])
            return True
    return False


def _in_words(said: str) -> str:
    """Return what CEL's checker says of types, in words."""
    match = _NO_OVERLOAD.search(said)
    if match is None:
        return said[:200]
    names = {"double": "number", "int": "whole number", "string": "text", "bool": "true or false"}
    kinds = [names.get(kind, kind) for kind in match.group(3).split(", ")]
    operator = match.group(1) or match.group(2)
    if len(kinds) == 2 and kinds[0] != kinds[1]:
        return f"{kinds[0]} {operator} {kinds[1]} cannot be: compare like with like (double(x) makes a number)"
    return f"{operator} does not take {' and '.join(kinds)}"
