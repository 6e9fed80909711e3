"""Responses that a worker keeps: read or cancelled where they are.

A worker keeps them in its own memory. This replica knows the home of those it has passed on; for others it asks the
workers one after the other until one does not answer 404.
"""

from __future__ import annotations

import asyncio
import logging
from uuid import uuid4

from router import errors
from router.dataplane.client import Client
from router.dataplane.headers import returned_lines, upstream_head
from router.dataplane.pools import Pools
from router.dataplane.relay import Relay, without_redirect
from router.dataplane.upstream import UpstreamResponse
from router.metrics import Metrics
from router.routes import stored_response
from router.workers.registry import Lease, Registry, Worker

log = logging.getLogger("router")

MAX_ASKED = 16
FIND_SECONDS = 2.0
ENDPOINT = "/v1/responses/{id}"


class StoredResponses:
    """Serves `/v1/responses/{id}` and `/v1/responses/{id}/cancel`."""

    def __init__(self, registry: Registry, pools: Pools, relay: Relay, metrics: Metrics) -> None:
        self._registry = registry
        self._pools = pools
        self._relay = relay
        self._metrics = metrics

    async def serve(self, client: Client, name: str, action: str) -> None:
        """Pass the request to the worker that keeps the response."""
        body = client.take_body()
        workers = self._to_ask(name)
        if not workers:
            raise errors.Unavailable("No worker is ready.", retry_after=2)
        failure: errors.RouterError | None = None
        for worker in workers:
            lease = Lease(self._registry, worker)
            try:
                response = await self._ask(client, worker, name, action, body)
                if response.status != 404 or worker is workers[-1]:
                    await self._pass_on(client, worker, response)
                    return
                response.close()
            except errors.UpstreamError as error:
                if client.started:
                    raise
                failure = error
            finally:
                lease.end()
        raise failure or errors.NotFound(f"No worker keeps the response '{name}'.")

    async def find(self, name: str) -> str | None:
        """The worker that keeps a response: known from its making, or asked for; None if nobody has it in time."""
        known = self._relay.home(name)
        if known is not None or stored_response(f"/v1/responses/{name}") is None:
            return known
        try:
            async with asyncio.timeout(FIND_SECONDS):
                for worker in self._to_ask(name):
                    if await self._keeps(worker, name):
                        self._relay.remember(name, worker.id)
                        return worker.id
        except TimeoutError:
            log.warning("no worker said in time whether it keeps a response")
        return None

    async def _keeps(self, worker: Worker, name: str) -> bool:
        target = self._pools.of(worker)
        path = f"/v1/responses/{name}".encode()
        head = upstream_head(
            b"GET", target.base_path + path, target.authority, [], None, uuid4().hex.encode(), target.authorization
        )
        try:
            response = await target.pool.request(head, b"", method=b"GET")
        except errors.RouterError:
            return False
        try:
            return response.status == 200
        finally:
            response.close()

    def _to_ask(self, name: str) -> list[Worker]:
        usable = [worker for worker in self._registry if worker.usable]
        home = self._relay.home(name)
        return [worker for worker in usable if worker.id == home] or usable[:MAX_ASKED]

    async def _ask(self, client: Client, worker: Worker, name: str, action: str, body: bytes) -> UpstreamResponse:
        target = self._pools.of(worker)
        path = f"/v1/responses/{name}" + (f"/{action}" if action else "")
        query = b"?" + client.query if client.query else b""
        head = upstream_head(
            client.method,
            target.base_path + path.encode() + query,
            target.authority,
            client.headers,
            len(body) if client.method == b"POST" else None,
            client.request_id,
            target.authorization,
        )
        return without_redirect(await target.pool.request(head, body, method=client.method))

    async def _pass_on(self, client: Client, worker: Worker, response: UpstreamResponse) -> None:
        try:
            client.begin(response.status, returned_lines(response.headers), response.content_length)
            while piece := await response.read():
                client.write(piece, more=True)
                if client.paused:
                    await client.drain()
            client.write(b"", more=False)
            self._metrics.requests.inc((ENDPOINT, "", worker.id, str(response.status)))
            self._metrics.outcomes.inc(("ok" if response.status < 500 else "upstream_error",))
        finally:
            response.close()
