"""The way back: bytes pass as they come, and what they say about the cache is taken down."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable

from router import errors
from router.dataplane.attempts import Outcome, outcome_of_status
from router.dataplane.client import Client
from router.dataplane.headers import first, returned_lines
from router.dataplane.job import Job, Kept
from router.dataplane.passage import Passage
from router.dataplane.sse import Tap
from router.dataplane.unasked import UnaskedClient
from router.dataplane.upstream import UpstreamResponse
from router.dataplane.verdicts import Verdicts
from router.metrics import Metrics
from router.prompt import Form
from router.wire import error_event
from router.workers import passive
from router.workers.registry import Registry
from router.workers.selection import WITH_PREFIX, Placement

log = logging.getLogger("router")

KEPT_BYTES = 64 * 1024
KEEP_SECONDS = 1.0
MAX_RESPONSE_HOMES = 10_000


class Relay:
    """Passes answers on; one for all of a process."""

    def __init__(
        self, registry: Registry, verdicts: Verdicts, metrics: Metrics, clock: Callable[[], float], *, reveal: bool
    ) -> None:
        self._registry = registry
        self._verdicts = verdicts
        self._metrics = metrics
        self._clock = clock
        self._reveal = reveal
        self._homes: OrderedDict[str, str] = OrderedDict()

    def reconfigure(self, *, reveal: bool) -> None:
        """Whether answers name their worker and decision from now on."""
        self._reveal = reveal

    def home(self, response_id: str) -> str | None:
        """The worker that keeps a stored response, if this replica saw it made."""
        return self._homes.get(response_id)

    async def keep(self, response: UpstreamResponse) -> Kept | None:
        """Take a refusal into memory while another worker is asked; None if it is too large or too slow."""
        pieces: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(KEEP_SECONDS):
                while size <= KEPT_BYTES:
                    piece = await response.read()
                    if not piece:
                        return Kept(response.status, returned_lines(response.headers), b"".join(pieces))
                    pieces.append(piece)
                    size += len(piece)
        except (errors.RouterError, TimeoutError):
            return None
        finally:
            response.close()
        return None

    def send_kept(self, job: Job, kept: Kept) -> None:
        """Pass a refusal on after all."""
        lines = kept.lines
        if self._reveal and job.record is not None:
            lines += job.record.header_lines()
        job.client.begin(kept.status, lines, len(kept.body))
        job.client.write(kept.body, more=False)
        self._count(job, kept.status, "ok" if kept.status < 500 else "upstream_error")

    def begin(self, job: Job, placement: Placement, response: UpstreamResponse) -> Passage:
        """Begin to pass an answer on; unless all of it is passed on then, `rest` must follow."""
        client = job.client
        client.stage = "stream"
        job.body = b""
        client.let_body_go()
        passage = Passage(self, job, placement, response, self._clock)
        try:
            passage.begin()
        except BaseException:
            self._end(passage)
            raise
        if passage.done:
            self._end(passage)
        return passage

    async def rest(self, passage: Passage) -> None:
        """Until the answer is passed on; a failure after the first byte ends it visibly broken."""
        client = passage.job.client
        try:
            await passage.wait()
        except asyncio.CancelledError:
            if passage.over:
                return
            if not client.gone:
                # The server's grace is over.
                passage.end(b"", errors.Draining("This replica is shutting down."))
            elif passage.tap is not None and passage.tap.finished:
                self.complete(passage)
            else:
                raise
        finally:
            self._end(passage)

    def _end(self, passage: Passage) -> None:
        passage.job.client.upstream = None
        passage.response.close()

    def start(self, passage: Passage) -> None:
        """The head of the answer."""
        job, response = passage.job, passage.response
        lines = returned_lines(response.headers)
        if self._reveal and job.record is not None:
            lines += job.record.header_lines()
        length = None if _has_unasked(job, response) else response.content_length
        job.client.begin(response.status, lines, length)

    def reader(self, job: Job, response: UpstreamResponse) -> Client | UnaskedClient:
        """Who gets the answer's bytes: the client, or what takes out of a stream the usage that it did not ask for."""
        return UnaskedClient(job.client) if _has_unasked(job, response) else job.client

    def tap(self, job: Job, response: UpstreamResponse) -> Tap | None:
        """A tap where the answer may say something of the cache."""
        if response.status >= 300 or job.route.form not in WITH_PREFIX:
            return None
        kind = first(response.headers, b"content-type") or b""
        return Tap(events=kind.startswith(b"text/event-stream"))

    def answered(self, passage: Passage) -> None:
        """The first byte is here: the worker works, and if it served the prompt it owns it now."""
        job, placement, response, tap = passage.job, passage.placement, passage.response, passage.tap
        now = self._clock()
        placement.lease.first_byte(computed=response.status < 300)
        if outcome_of_status(response.status) is Outcome.ANSWERED:
            passive.served(self._registry, placement.worker, now)
        record = job.record
        if response.status >= 300 or (tap is not None and tap.failed_at_once):
            return
        placement.own(now)
        if record is not None and job.row is not None:
            record.first_byte_seconds = seconds = now - job.began
            job.row.first_byte(seconds)
        if tap is not None and job.route.form is Form.RESPONSES:
            self._remember_home(tap, placement)

    def _remember_home(self, tap: Tap, placement: Placement) -> None:
        name = tap.response_id()
        if name is not None:
            self.remember(name, placement.worker.id)

    def remember(self, response_id: str, worker: str) -> None:
        """A worker keeps this response."""
        self._homes[response_id] = worker
        if len(self._homes) > MAX_RESPONSE_HOMES:
            self._homes.popitem(last=False)

    def broken(self, passage: Passage, error: errors.RouterError) -> None:
        """The answer has failed after its first byte: say so where that can be seen, and break off."""
        client, tap, response = passage.job.client, passage.tap, passage.response
        self._metrics.upstream_errors.inc((passage.placement.worker.id, "midstream"))
        told = tap is not None and tap.events and tap.between_events and _may_be_added_to(response)
        if told:
            client.write(error_event(error), more=True)
        client.break_off(told=told)
        self._count(passage.job, client.status, "midstream_abort")

    def complete(self, passage: Passage) -> None:
        """The answer is whole."""
        status = passage.response.status
        self._count(passage.job, status, "upstream_error" if status >= 500 else "ok")
        record = passage.job.record
        if passage.tap is not None and record is not None:
            try:
                self._verdicts.join(record, passage.placement, passage.tap.usage())
            except Exception:
                # The client has its answer, and it is counted: what it says of the cache is all that is lost.
                log.exception("internal error")

    def _count(self, job: Job, status: int, outcome: str) -> None:
        if job.row is not None:
            job.row.answered(status, outcome)
        else:
            self._metrics.requests.inc((job.route.path, job.inquiry.model, "", str(status)))
            self._metrics.outcomes.inc((outcome,))
        if job.record is not None:
            job.record.outcome = outcome


def _has_unasked(job: Job, response: UpstreamResponse) -> bool:
    """Whether an answer is a stream with usage for the router alone."""
    if not job.asked or response.status >= 300 or first(response.headers, b"content-encoding") is not None:
        return False
    return (first(response.headers, b"content-type") or b"").startswith(b"text/event-stream")


def _may_be_added_to(response: UpstreamResponse) -> bool:
    """An event of the router's own must not pass for the rest of a declared length, or stand among coded bytes."""
    return response.content_length is None and first(response.headers, b"content-encoding") is None


def without_redirect(response: UpstreamResponse) -> UpstreamResponse:
    """The answer, unless it sends the client elsewhere: a client would follow to wherever the worker says."""
    if 300 <= response.status < 400:
        response.close()
        raise errors.UpstreamProtocolError("The worker answered with a redirect.")
    return response
