"""Who may ask a route, and what a viewer sees of its answer: marked where each is declared, and nothing by default.

A route names its role with `needs`; a field that viewers see is `Shown`. Left out are bodies, facts, and every text
that tells of them: refusal messages, errors of handlers, notes, questions.
"""

from collections.abc import Callable
from functools import cache, wraps
from typing import Any, TypeVar, cast

from fastapi import Depends
from fastapi.routing import APIRoute

from apc_web.access import AccountRole, caller, require
from apc_web.models import VIEWER_SEES, ApiModel

Model = TypeVar("Model", bound=ApiModel)
Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])
_MARK = "apc_role"
_OF_BODIES = ("text", "tag")
"""Parameters of which the answer tells what bodies hold: a tag of a run stands in its START."""


@cache
def shown_fields(model: type[ApiModel]) -> frozenset[str]:
    """Return the fields that viewers see: those that are marked; a new one begins hidden."""
    return frozenset(name for name, field in model.model_fields.items() if VIEWER_SEES in field.metadata)


def narrowed(model: Model) -> Model:
    """Return a model with what a viewer may see; everything else is empty."""
    shown = {name: _shown(model, name) for name in type(model).model_fields}
    return cast(Model, type(model).model_construct(**shown))


def _shown(model: ApiModel, name: str) -> Any:
    value = getattr(model, name)
    return _inner(value) if name in shown_fields(type(model)) else _empty(value)


def _inner(value: Any) -> Any:
    if isinstance(value, ApiModel):
        return narrowed(value)
    if isinstance(value, list):
        return [_inner(one) for one in value]
    return value


def _empty(value: Any) -> Any:
    """Return what stands in the place of a hidden value: of its kind, so that the document of the API holds."""
    return type(value)() if isinstance(value, str | list | dict | int | float) else None


def needs(role: AccountRole | None) -> Callable[[Endpoint], Endpoint]:
    """Mark a route with the role that it needs; None = it is for those who have not logged in."""

    def marked(endpoint: Endpoint) -> Endpoint:
        setattr(endpoint, _MARK, role)
        return endpoint

    return marked


class RoleRoute(APIRoute):
    """A route that asks for its role, and shows a viewer what a viewer may see.

    Raises TypeError where the endpoint has no mark: the server does not start.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        if not hasattr(endpoint, _MARK):
            raise TypeError(f"the route {path} ({endpoint.__name__}) names no role: mark it with @needs")
        self.role: AccountRole | None = getattr(endpoint, _MARK)
        if self.role is not None:
            options["dependencies"] = [Depends(_asking(self.role)), *(options.get("dependencies") or ())]
        super().__init__(path, _narrowed(endpoint), **options)


def _asking(role: AccountRole) -> Callable[[], Any]:
    async def asked() -> None:
        require(role)

    return asked


def _narrowed(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(endpoint)
    async def shown(*arguments: Any, **named: Any) -> Any:
        if caller().role is AccountRole.VIEWER and any(named.get(name) is not None for name in _OF_BODIES):
            require(AccountRole.READER)  # whether a text is found tells what the bodies hold
        answer = await endpoint(*arguments, **named)
        return narrowed(answer) if caller().role is AccountRole.VIEWER and isinstance(answer, ApiModel) else answer

    return shown
