"""The ASGI entry: inference routes are served here, everything else is the control plane's.

FastAPI would cost as much again as all the work of the data plane, so it never sees an inference request.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from router import errors
from router.dataplane.client import BodyBudget, Client, Receive, Send
from router.dataplane.dispatch import Dispatcher
from router.dataplane.headers import first
from router.dataplane.stored import StoredResponses
from router.keys import Keys
from router.metrics import Metrics
from router.routes import ROUTES, stored_response
from router.settings import Settings

log = logging.getLogger("router")

App = Callable[[Any, Receive, Send], Awaitable[None]]


class Entry:
    """One for all of a process; `control` gets what is not an inference route."""

    def __init__(
        self,
        settings: Settings,
        dispatcher: Dispatcher,
        stored: StoredResponses,
        control: App,
        metrics: Metrics,
    ) -> None:
        self.control = control
        self.budget = BodyBudget(settings.limits.total_body_bytes)
        self._dispatcher = dispatcher
        self._stored = stored
        self._metrics = metrics
        self._keys = Keys(settings.auth.api_keys)
        self._life = secrets.token_hex(6)
        self._count = itertools.count(1)
        self.active = 0

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve one request or hand it on."""
        if scope["type"] != "http":
            await self.control(scope, receive, send)
            return
        path: str = scope["path"]
        route = ROUTES.get(path)
        stored = stored_response(path) if route is None else None
        if route is None and stored is None:
            await self.control(scope, receive, send)
            return
        client = Client(scope, receive, send, self.budget, f"{self._life}{next(self._count):08x}".encode())
        task = asyncio.current_task()
        assert task is not None
        client.attach(task)
        self.active += 1
        try:
            self._authorise(client)
            if route is not None:
                _require(client.method, "POST")
                await self._dispatcher.serve(client, route)
            elif stored is not None:
                _require(client.method, "POST" if stored[1] else "GET")
                await self._stored.serve(client, *stored)
        except errors.ClientGone:
            self._left(client)
        except errors.RouterError as error:
            await self._refuse(client, path, error)
        except asyncio.CancelledError:
            # Cancelled for this request alone: its client has left, or the server's grace is over.
            task.uncancel()
            if client.gone:
                self._left(client)
            else:
                await self._refuse(client, path, errors.Draining("This replica is shutting down.", retry_after=1))
        except Exception:
            log.exception("internal error")
            await self._refuse(client, path, errors.RouterError("The router failed to handle this request."))
        finally:
            self.active -= 1
            client.detach()

    def _authorise(self, client: Client) -> None:
        headers = client.headers
        if self._keys and not self._keys.admit(first(headers, b"authorization"), first(headers, b"x-api-key")):
            raise errors.Unauthorized("A valid API key is required.")

    def _left(self, client: Client) -> None:
        self._metrics.outcomes.inc(("client_abort",))
        self._metrics.aborts.inc((client.stage,))

    async def _refuse(self, client: Client, path: str, error: errors.RouterError) -> None:
        """Count a request that ends with an error of the router's own, and say so to the client."""
        if client.started:
            self._metrics.outcomes.inc(("midstream_abort",))
            client.break_off()
            return
        self._metrics.requests.inc((path if path in ROUTES else "/v1/responses/{id}", "", "", str(error.status)))
        if isinstance(error, errors.ClientError):
            self._metrics.outcomes.inc(("bad_request",))
        elif isinstance(error, errors.Unavailable):
            self._metrics.outcomes.inc(("shed",))
            self._metrics.shed.inc((error.code,))
        else:
            self._metrics.outcomes.inc(("upstream_error",))
        await client.answer_error(error)


def _require(method: str, allowed: str) -> None:
    if method != allowed:
        raise errors.MethodNotAllowed(f"Use {allowed} on this route.", allow=allowed)
