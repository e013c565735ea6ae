"""The Python API says in `help()` what a caller needs, and its examples run."""

import ast
import asyncio
import importlib
import importlib.util
import inspect
import re
import textwrap
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints, is_typeddict

import pytest
from pydantic import BaseModel

import apc_client
from apc_agents import EmitOptions, Team
from apc_client import TeamTestClient

PACKAGES = ("apc_agents", "apc_client", "apc_minds.llm", "apc_minds.pydantic_ai", "apc_contracts")
"""Those with a page of the API on the site."""
DESCRIBED = ("apc_agents", "apc_client", "apc_minds.llm", "apc_minds.pydantic_ai")
"""Those whose parameters are described one by one."""
SHOWN = ("apc_agents", "apc_client", "apc_minds.llm", "apc_minds.pydantic_ai")
"""Those of whose public names each is used by an example."""
EXAMPLE = re.compile(r"^```python\n(?P<code>.*?)^```", re.DOTALL | re.MULTILINE)


def public(package: str) -> dict[str, Any]:
    """Return the public names of a package."""
    module = importlib.import_module(package)
    return {name: getattr(module, name) for name in module.__all__}


def documented(package: str) -> Iterator[tuple[str, Any]]:
    """Yield the package, its public classes and functions, and the public methods of the classes, with their names."""
    yield package, importlib.import_module(package)
    for name, value in public(package).items():
        if not (inspect.isclass(value) or inspect.isfunction(value)):
            continue
        yield f"{package}.{name}", value
        for key, member in members(package, value):
            function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            if inspect.isfunction(function) and not key.startswith("_") and not _is_of_a_protocol(package, value, key):
                yield f"{package}.{name}.{key}", function


def members(package: str, owner: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a class has by itself or from base classes that have no place in the API of their package."""
    bases = owner.__mro__ if inspect.isclass(owner) else ()
    listed = [one for one in public(package).values() if inspect.isclass(one) and one is not owner]
    hidden = [one for one in bases if one.__module__.startswith("apc_") and one not in listed]
    for one in hidden:
        yield from list(vars(one).items())


def _is_of_a_protocol(package: str, owner: Any, method: str) -> bool:
    """Return whether a public protocol describes the method of a class that implements it."""
    protocols = [one for one in public(package).values() if getattr(one, "_is_protocol", False) and one is not owner]
    return any(method in vars(protocol) for protocol in protocols)


def undescribed(name: str, value: Any) -> list[str]:
    """Return the parameters, fields or options that the docstring of a class or function leaves out."""
    text = inspect.getdoc(value) or ""
    if inspect.isclass(value):
        text += vars(value)["__init__"].__doc__ or "" if inspect.isfunction(vars(value).get("__init__")) else ""
    return [one for one in _given(value) if not re.search(rf"\b{one}\b", EXAMPLE.sub("", text))]


def _given(value: Any) -> list[str]:
    if inspect.ismodule(value):
        return []
    if is_typeddict(value):
        return list(get_type_hints(value))
    if inspect.isclass(value) and (issubclass(value, BaseModel) and value.__module__.startswith("apc_bus.settings")):
        return []  # docs/reference/settings.md has each, as `apc config` does
    try:
        parameters = inspect.signature(value).parameters.values()
    except ValueError:
        return []
    named = [one.name for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    return [name for name in named if name not in ("self", "cls") and not name.startswith("_")]


def examples() -> Iterator[tuple[str, str]]:
    """Yield each example in the docstrings, with the name of what it shows."""
    for package in PACKAGES:
        for name, value in documented(package):
            for number, found in enumerate(EXAMPLE.finditer(inspect.getdoc(value) or "")):
                if found["code"] not in PRELUDES.values():
                    yield f"{name}-{number}", found["code"]


def _first_example(package: str) -> str:
    found = EXAMPLE.search(inspect.getdoc(importlib.import_module(package)) or "")
    assert found is not None
    return found["code"]


PRELUDES = {package: _first_example(package) for package in ("apc_agents", "apc_contracts")}
"""With what the examples of a package begin; those of the client begin as those of agents."""
EXAMPLES = dict(examples())


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_and_method_says_what_it_is(package: str) -> None:
    """A class may have the docstring of its base, but not that of `Exception` or pydantic."""
    bare = [name for name, value in documented(package) if not any(_docstrings(value))]
    assert bare == []


def _docstrings(value: Any) -> Iterator[str | None]:
    if not inspect.isclass(value):
        yield value.__doc__
        return
    yield from (vars(one).get("__doc__") for one in value.__mro__ if one.__module__.startswith("apc_"))


def test_every_function_of_the_contract_has_an_example() -> None:
    used = {word for name, code in EXAMPLES.items() for word in _words(code) if name.startswith("apc_contracts")}
    functions = {name for name, value in public("apc_contracts").items() if inspect.isfunction(value)}
    assert sorted(functions - used) == []


@pytest.mark.parametrize("package", DESCRIBED)
def test_every_parameter_field_and_option_is_described(package: str) -> None:
    left_out = {name: found for name, value in documented(package) if (found := undescribed(name, value))}
    assert left_out == {}


def test_a_time_in_seconds_says_so() -> None:
    """A timedelta has its unit; a number of seconds has not."""
    silent = []
    for package in DESCRIBED:
        for name, value in documented(package):
            if inspect.isfunction(value) and "timeout" in (parameters := inspect.signature(value).parameters):
                if "float" in str(parameters["timeout"].annotation) and "seconds" not in (value.__doc__ or ""):
                    silent.append(name)
    assert silent == []


def test_what_is_left_out_is_found() -> None:
    def told(timeout: float, key: str) -> None:
        """Wait for `key`."""

    assert undescribed("told", told) == ["timeout"]


@pytest.mark.parametrize("package", SHOWN)
def test_an_example_uses_every_public_name(package: str) -> None:
    used = {word for code in (*EXAMPLES.values(), *PRELUDES.values()) for word in _words(code)}
    assert sorted(set(public(package)) - used) == []


def test_examples_use_every_option_of_an_emission_and_of_a_team() -> None:
    used = {word for code in EXAMPLES.values() for word in _words(code)}
    wanted = {*get_type_hints(EmitOptions), *_given(Team)}
    assert sorted(wanted - used) == []


def _words(code: str) -> set[str]:
    """Return the names, the attributes, the keywords and the keys of dictionaries in a piece of Python."""
    found = set()
    for node in ast.walk(ast.parse(code)):
        match node:
            case (
                ast.Name(id=word)
                | ast.Attribute(attr=word)
                | ast.keyword(arg=str(word))
                | ast.Constant(value=str(word))
            ):
                found.add(word)
            case ast.alias(name=word):
                found.add(word)
    return found


@pytest.mark.parametrize("name", [name for name in EXAMPLES if not name.startswith("apc_client")])
def test_an_example_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("APC_AMQP_URL", raising=False)
    run_example(
        EXAMPLES[name], tmp_path, PRELUDES["apc_contracts" if name.startswith("apc_contracts") else "apc_agents"]
    )


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name.startswith("apc_client")])
def test_an_example_with_a_log_runs(
    name: str, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("APC_AMQP_URL", raising=False)
    monkeypatch.setenv("APC_DATABASE_URL", postgres_url)
    monkeypatch.setenv("APC_DATA_DIR", str(tmp_path))
    monkeypatch.setattr(apc_client, "TeamTestClient", partial(TeamTestClient, database_url=postgres_url))
    monkeypatch.chdir(tmp_path)
    run_example(EXAMPLES[name], tmp_path)


def run_example(code: str, folder: Path, prelude: str = PRELUDES["apc_agents"]) -> None:
    """Run an example as a module; the body of a coroutine function where it awaits at its top level."""
    awaits = _awaits(code)
    body = f"async def example():\n{textwrap.indent(code, '    ')}" if awaits else code
    file = folder / "example_of_a_docstring.py"
    file.write_text(f"{prelude}\n\n{body}")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if awaits:
        asyncio.run(asyncio.wait_for(module.example(), 60))


def _awaits(code: str) -> bool:
    try:
        compile(code, "example", "exec", dont_inherit=True)
    except SyntaxError:
        return True
    return False


def test_what_fails_in_an_example_fails_the_test(tmp_path: Path) -> None:
    for code in ("assert desk.role == 'other'\n", "await asyncio.sleep(0)\nassert desk.role == 'other'\n"):
        with pytest.raises(AssertionError):
            run_example(code, tmp_path)


def test_each_field_of_the_contract_models_is_described() -> None:
    models = {name: one for name, one in public("apc_contracts").items() if inspect.isclass(one)}
    left = {
        f"{name}.{field}"
        for name, one in models.items()
        if issubclass(one, BaseModel)
        for field, info in one.model_fields.items()
        if not info.description and not re.search(rf"^ *{field}: ", _docs_of(one), re.MULTILINE)
    }
    assert left == set()


def _docs_of(model: type) -> str:
    """Return the docstrings of a class and of those that it is made from."""
    return "\n".join(base.__doc__ or "" for base in model.__mro__ if base.__module__.startswith("apc_"))
