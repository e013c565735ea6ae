"""The error of a request: one `application/problem+json` answer."""

from dataclasses import dataclass
from http import HTTPStatus

from apc_contracts.errors import ApcError


@dataclass(eq=False)
class ApiError(ApcError):
    """A request that cannot be answered as asked.

    Args:
        status: the HTTP status.
        code: a word for programs.
        detail: what happened and what to do, one sentence.
        field: the parameter, header or member at fault.
    """

    status: int
    code: str
    detail: str
    field: str | None = None

    def __str__(self) -> str:
        return self.detail

    @property
    def title(self) -> str:
        """Return the phrase of the status."""
        return HTTPStatus(self.status).phrase


def not_found(what: str, hint: str, field: str | None = None) -> ApiError:
    """Return the error for something that the log does not hold."""
    return ApiError(404, "NOT_FOUND", f"the log holds no {what}: {hint}", field)


def invalid(field: str, detail: str) -> ApiError:
    """Return the error for a parameter that cannot be used."""
    return ApiError(422, "INVALID", detail, field)
