"""The control plane: everything that is not an inference route, and the answer to everything unknown."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match

from router import errors
from router.control.context import ControlContext
from router.control.dashboard import Dashboard
from router.control.decisions import Decisions
from router.control.doors import Doors
from router.control.events import Events
from router.control.exchange import refusal
from router.control.explain import Explain
from router.control.health import Health
from router.control.history import History
from router.control.models import Models
from router.control.state import State
from router.control.workers import Workers
from router.routes import ROUTES
from router.settings import Settings
from router.wire import usable_request_id

__all__ = ["Control", "ControlContext", "create_control"]

log = logging.getLogger("router")
SHOWN_PATH = 100

Endpoint = Callable[..., Awaitable[Response]]
Guard = Callable[[Request], Awaitable[None]] | None
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


class Control:
    """The ASGI app: names every answer by its request id, and leaves no failure without one."""

    def __init__(self, app: FastAPI, history: History, context: ControlContext, doors: Doors) -> None:
        self._app = app
        self._context = context
        self._doors = doors
        self._history = history

    def reconfigure(self, settings: Settings) -> None:
        """Other settings are in force, and other keys open the doors."""
        self._context.settings = settings
        self._doors.reconfigure(settings.auth)

    def tick(self, now: float) -> None:
        """Call about once a second, so that there is something to see when somebody looks."""
        self._history.tick(now)

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)

        async def send_named(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], (b"x-request-id", request_id)]}
            await send(message)

        try:
            await self._app(scope, receive, send_named)
        except Exception:
            # The client has its 500 already; Starlette raises again for the sake of the log.
            log.exception("internal error")


def create_control(context: ControlContext) -> Control:
    """The control plane of one replica."""
    # redirect_slashes would answer an unknown path with a redirect where clients expect 404.
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    history = History(context.metrics, context.ring)
    doors = Doors(context.settings.auth)
    for methods, path, endpoint, guard in _routes(context, history, doors):
        guards = [] if guard is None else [Depends(guard)]
        app.add_api_route(path, endpoint, methods=methods.split(), dependencies=guards)
    app.add_exception_handler(errors.RouterError, _refuse)
    app.add_exception_handler(RequestValidationError, _refuse_parameters)
    app.add_exception_handler(HTTPException, _refuse_route)
    app.add_exception_handler(Exception, _refuse_failure)
    return Control(app, history, context, doors)


def _routes(context: ControlContext, history: History, doors: Doors) -> list[tuple[str, str, Endpoint, Guard]]:
    """Every route: verbs, path, what serves it, and who may use it."""
    health = Health(context)
    workers = Workers(context, doors)
    state = State(context, history)
    worker = "/router/workers/{worker}"
    return [
        ("GET HEAD", "/health", health.health, None),
        ("GET HEAD", "/ready", health.ready, None),
        ("GET", "/metrics", health.metrics, None),
        ("GET", "/v1/models", Models(context).list, doors.client),
        ("GET", "/router/workers", workers.list, None),
        ("POST", "/router/workers", workers.add, doors.admin),
        ("DELETE", worker, workers.remove, doors.admin),
        ("POST", worker + "/drain", workers.drain, doors.admin),
        ("POST", worker + "/resume", workers.resume, doors.admin),
        ("POST", "/router/explain", Explain(context).explain, doors.reader),
        ("GET", "/router/decisions", Decisions(context).list, doors.reader),
        ("GET", "/router/state", state.state, doors.reader),
        ("GET", "/router/events", Events(context, state, history).stream, doors.reader),
        ("GET HEAD", "/router/dashboard", Dashboard(locked=doors.locked).page, None),
    ]


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, errors.RouterError)
    return refusal(error)


async def _refuse_parameters(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    name = str(first["loc"][-1])
    return refusal(errors.BadRequest(f"{name}: {first['msg']}", param=name))


async def _refuse_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        allow = ", ".join(_verbs(request.app.routes, request.scope))
        return refusal(errors.MethodNotAllowed(f"Use {allow} on this route.", allow=allow))
    return refusal(errors.UnknownRoute(_no_such_path(request.app.routes, request.scope)))


async def _refuse_failure(request: Request, error: Exception) -> Response:
    return refusal(errors.RouterError("The router failed to handle this request."))


def _no_such_path(routes: list[BaseRoute], scope: Any) -> str:
    """Names the path that was asked for, as much of it as is fit to be shown, and the known one that it resembles."""
    path = str(scope["path"])
    shown = re.sub("[^!-~]", "?", path[:SHOWN_PATH]) + "..." * (len(path) > SHOWN_PATH)
    bare = path.rstrip("/")
    for guess in (bare, f"/v1{bare}", bare.removeprefix("/v1")):
        if guess != path and len(guess) <= SHOWN_PATH and _is_known(guess, routes):
            return f"The router does not serve {shown}. Did you mean {guess}?"
    if bare in ("", "/router", "/dashboard"):
        return f"The router does not serve {shown}. Its dashboard is at /router/dashboard."
    return f"The router does not serve {shown}."


def _is_known(path: str, routes: list[BaseRoute]) -> bool:
    if path in ROUTES:
        return True
    # A route with a name in its path would match anything.
    return any(getattr(route, "path", None) == path for route in routes)


def _verbs(routes: list[BaseRoute], scope: Any) -> list[str]:
    """All verbs of a path; the framework names those of one of its routes."""
    verbs: set[str] = set()
    for route in routes:
        if route.matches(scope)[0] is not Match.NONE:
            verbs |= getattr(route, "methods", set())
    return sorted(verbs)


def _request_id(scope: Any) -> bytes:
    """The client's where it is usable, else a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            return bytes(value) if usable_request_id(value) else secrets.token_hex(8).encode()
    return secrets.token_hex(8).encode()
