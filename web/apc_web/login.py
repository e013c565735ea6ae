"""Routes of logins: only where the server has accounts."""

from fastapi import APIRouter, Request, Response

from apc_web.access import COOKIE, LONGEST_SECONDS, Accounts, caller
from apc_web.errors import ApiError
from apc_web.models import LoginRequest
from apc_web.roles import RoleRoute, needs
from apc_web.route_services import Services, Serving
from apc_web.throttle import source_of

router = APIRouter(tags=["login"], route_class=RoleRoute)


def _accounts(services: Services) -> Accounts:
    if services.accounts is None:
        raise ApiError(403, "NO_ACCOUNTS", "this server has no accounts: open the link that `apc ui` printed")
    return services.accounts


@router.post("/login", status_code=204)
@needs(None)
async def login(services: Serving, request: LoginRequest, http: Request) -> Response:
    """Log in with name and password; the answer sets a cookie for this host alone."""
    source = source_of(http.client.host if http.client is not None else "")
    cookie = await _accounts(services).login(request.name, request.password.get_secret_value(), source)
    response = Response(status_code=204)
    response.set_cookie(
        COOKIE, cookie, max_age=int(LONGEST_SECONDS), path="/", secure=True, httponly=True, samesite="strict"
    )
    return response


@router.post("/logout", status_code=204)
@needs(None)
async def logout(services: Serving) -> Response:
    """End this login; streams that it opened end within 30 s."""
    _accounts(services).logout(caller())
    response = Response(status_code=204)
    response.delete_cookie(COOKIE, path="/", secure=True, httponly=True, samesite="strict")
    return response
