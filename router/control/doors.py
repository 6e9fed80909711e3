"""Who may use which control route."""

from __future__ import annotations

from starlette.requests import Request

from router.errors import Forbidden, Unauthorized
from router.keys import Keys
from router.settings import AuthSettings

_ADMIN_ONLY = "The admin key is required, as Authorization: Bearer ..."


class Doors:
    """Guards for routes; each raises unless the request may pass.

    They are coroutines because FastAPI would send plain functions to a thread.
    """

    def __init__(self, auth: AuthSettings) -> None:
        self.reconfigure(auth)

    def reconfigure(self, auth: AuthSettings) -> None:
        """Other keys from now on."""
        self._clients = Keys(named=auth.client_keys)
        key = auth.admin_key
        # An empty key is what an unset variable leaves behind in a compose file: no key.
        self._admin = Keys([key] if key is not None and key.get_secret_value() else [])

    @property
    def locked(self) -> bool:
        """Whether readers need the admin key."""
        return bool(self._admin)

    async def client(self, request: Request) -> None:
        """Clients of the API: one of their keys, where there are any."""
        if self._clients and not self._clients.admit(*_given(request)):
            raise Unauthorized("A valid API key is required.")

    async def reader(self, request: Request) -> None:
        """Everybody, unless there is an admin key."""
        if self._admin and not self.is_admin(request):
            raise Unauthorized(_ADMIN_ONLY)

    async def admin(self, request: Request) -> None:
        """The admin alone; without a configured key nobody."""
        if not self._admin:
            raise Forbidden("The fleet can't be changed over HTTP: no admin key is configured (auth.admin_key).")
        if not self.is_admin(request):
            raise Unauthorized(_ADMIN_ONLY)

    def is_admin(self, request: Request) -> bool:
        """Whether the request carries the admin key."""
        return self._admin.admit(_given(request)[0])


def _given(request: Request) -> tuple[bytes | None, bytes | None]:
    authorization = request.headers.get("authorization")
    x_api_key = request.headers.get("x-api-key")
    return (
        None if authorization is None else authorization.encode("latin-1"),
        None if x_api_key is None else x_api_key.encode("latin-1"),
    )
