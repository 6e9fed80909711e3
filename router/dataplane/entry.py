"""The gate of the data plane: which requests are served here, which are refused at once, and how each one ends.

Inference requests come from the protocol as a `Client`; the ASGI side gets only what belongs to the control plane.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from router import errors
from router.dataplane.client import BodyBudget, Client
from router.dataplane.decision_log import DecisionLog
from router.dataplane.dispatch import Dispatcher
from router.dataplane.outgoing import Outgoing
from router.dataplane.server import RouterProtocol
from router.dataplane.stored import ENDPOINT, StoredResponses
from router.dataplane.tenancy import Tenancy
from router.dataplane.turns import SMALL_BYTES, Turns
from router.metrics import Metrics
from router.routes import ROUTES, stored_response
from router.settings import LimitSettings, Settings

log = logging.getLogger("router")

App = Callable[[Any, Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]]
STORED_BODY_BYTES = 64 * 1024
_ROUTES = {path.encode(): route for path, route in ROUTES.items()}


class Entry:
    """One for all of a process; `control` gets what is not an inference request."""

    def __init__(
        self,
        settings: Settings,
        dispatcher: Dispatcher,
        stored: StoredResponses,
        control: App,
        metrics: Metrics,
        log: DecisionLog,
        tenancy: Tenancy,
        outgoing: Outgoing,
    ) -> None:
        self.outgoing = outgoing
        self.control = control
        self.budget = BodyBudget(settings.limits.total_body_bytes)
        self.active = 0
        self._limits = settings.limits
        self._dispatcher = dispatcher
        self._stored = stored
        self._metrics = metrics
        self._decision_log = log
        self._tenancy = tenancy
        self._life = secrets.token_hex(6)
        self._count = itertools.count(1)
        self._turns = Turns()

    def reconfigure(self, limits: LimitSettings) -> None:
        """Other limits for the requests that come."""
        self._limits = limits
        self.budget.limit = limits.total_body_bytes

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """ASGI, for the control plane alone."""
        await self.control(scope, receive, send)

    # -- the gate that the protocol knows ------------------------------------------------------------------

    def admit(self, connection: RouterProtocol, method: bytes, path: bytes, query: bytes) -> Client | None:
        """A client for an inference request, refused already where its head says enough."""
        route = _ROUTES.get(path)
        stored = None
        if route is None:
            stored = stored_response(path.decode("latin-1")) if path.startswith(b"/v1/responses/") else None
            if stored is None:
                return None
        name = ENDPOINT if route is None else route.path
        spare_id = f"{self._life}{next(self._count):020x}".encode()
        client = Client(connection, method, name, query, self.budget, spare_id)
        client.route, client.stored = route, stored
        if route is None:
            client.limit = STORED_BODY_BYTES
        else:
            client.limit = self._limits.media_body_bytes if route.media else self._limits.body_bytes
        try:
            self._check(client)
        except errors.RouterError as error:
            client.refuse(error)
        return client

    def begin(self, client: Client) -> None:
        """Serve a whole request in a task of its own, or answer it with its refusal."""
        if client.refusal is not None:
            self._refuse(client, client.refusal)
            return
        try:
            # Others of the same tenant may have come since its head was seen.
            self._tenancy.enter(client.tenant)
        except errors.TenantLimit as error:
            client.refuse(error)  # which lets its body go
            self._refuse(client, error)
            return
        self.active += 1
        self.outgoing.expect()
        client.task = client.spawn(self._serve(client))

    def left(self, client: Client) -> None:
        """Nobody is there any more to answer."""
        self._metrics.outcomes.inc(("client_abort",))
        self._metrics.aborts.inc((client.stage,))
        if client.stage in ("body", "queue"):
            self._decision_log.left(client.request_id, client.stage)

    def rejected(self, error: errors.RouterError) -> None:
        """A request that was refused before it was whole."""
        self._metrics.requests.inc(("", "", "", str(error.status)))
        self._metrics.outcomes.inc(("bad_request",))

    def turned_away(self, error: errors.RouterError) -> None:
        """A connection that found no room; somebody waits for an answer at its other end."""
        self._metrics.requests.inc(("", "", "", str(error.status)))
        self._metrics.outcomes.inc(("shed",))
        self._metrics.shed.inc((error.code,))

    # ------------------------------------------------------------------------------------------------------

    def _check(self, client: Client) -> None:
        fields = client.fields
        client.tenant = self._tenancy.tenant(fields)
        allowed = b"GET" if client.stored is not None and not client.stored[1] else b"POST"
        if client.method != allowed:
            verb = allowed.decode()
            raise errors.MethodNotAllowed(f"Use {verb} on this route.", allow=verb)
        if b"content-encoding" in fields and any(
            name == b"content-encoding" and value.lower() != b"identity" for name, value in client.headers
        ):
            raise errors.UnsupportedMediaType("Compressed request bodies are not accepted.")
        declared = fields.get(b"content-length")
        if declared is not None and int(declared) > client.limit:
            raise errors.PayloadTooLarge(f"The body is larger than {client.limit} bytes.")
        self._tenancy.look(client.tenant)

    async def _serve(self, client: Client) -> None:
        self.outgoing.arrived()
        client.stage = "queue"
        try:
            if client.gone:
                self.left(client)
            elif client.route is not None:
                if client.size > SMALL_BYTES:
                    await self._turns.take()
                await self._dispatcher.serve(client, client.route)
            elif client.stored is not None:
                await self._stored.serve(client, *client.stored)
        except errors.RouterError as error:
            self._refuse(client, error)
        except asyncio.CancelledError:
            # Cancelled for this request alone: its client has left, or the server's grace is over.
            if client.gone:
                self.left(client)
            else:
                self._refuse(client, errors.Draining("This replica is shutting down.", retry_after=1))
        except Exception:
            log.exception("internal error")
            self._refuse(client, errors.RouterError("The router failed to handle this request."))
        finally:
            self.active -= 1
            self._tenancy.leave(client.tenant)
            client.let_body_go()
            client.end_task()

    def _refuse(self, client: Client, error: errors.RouterError) -> None:
        """Count a request that ends with an error of the router's own, and say so to the client."""
        if client.started:
            self._metrics.outcomes.inc(("midstream_abort",))
            client.break_off()
            return
        self._metrics.requests.inc((client.path, "", "", str(error.status)))
        if isinstance(error, errors.ClientError):
            self._metrics.outcomes.inc(("bad_request",))
        elif isinstance(error, errors.Unavailable):
            self._metrics.outcomes.inc(("shed",))
            self._metrics.shed.inc((error.code,))
        else:
            self._metrics.outcomes.inc(("upstream_error",))
        if not isinstance(error, errors.ClientError):
            self._decision_log.failed(client.request_id, error)
        client.answer_error(error)
