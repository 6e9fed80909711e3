"""One request on its way, as dispatch, relay and those who are told of its end know it."""

from __future__ import annotations

from dataclasses import dataclass

from router.dataplane.attempts import Outcome
from router.dataplane.client import Client
from router.dataplane.spans import Span
from router.dataplane.upstream import UpstreamResponse
from router.decisions import DecisionRecord
from router.errors import RouterError
from router.metrics import Row
from router.routes import Route
from router.workers.registry import Worker
from router.workers.selection import Inquiry


@dataclass(frozen=True, slots=True)
class Kept:
    """A refusal that is passed on if no other worker does better."""

    status: int
    lines: bytes  # of its header
    body: bytes


class Job:
    """A request, and what is known of it so far; `began` in the dispatcher's clock.

    `asked`: the router asks for the usage of the stream, which the client did not.
    """

    __slots__ = (
        "asked",
        "began",
        "begun",
        "body",
        "cause",
        "client",
        "earlier",
        "failed_over",
        "failure",
        "head",
        "inquiry",
        "kept",
        "prepaid",
        "record",
        "refused_by",
        "route",
        "row",
        "span",
        "tried",
    )

    def __init__(
        self, client: Client, route: Route, body: bytes, inquiry: Inquiry, began: float, *, asked: bool = False
    ) -> None:
        self.client = client
        self.route = route
        self.body = body
        self.inquiry = inquiry
        self.began = began
        self.asked = asked
        # For the worker that is asked now, and the answer to come, where the request is on its way already.
        self.head = b""
        self.begun: UpstreamResponse | None = None
        # The decision, and where it is counted what becomes of it; the decisions before that one, if there were any.
        self.record: DecisionRecord | None = None
        self.row: Row | None = None
        self.earlier: tuple[DecisionRecord, ...] = ()
        self.span: Span | None = None
        # Ids of the workers that were asked, why the last of them is not the last, and what came of it all.
        self.tried: list[str] = []
        self.cause: Outcome | None = None
        self.refused_by: list[Worker] = []
        self.kept: Kept | None = None
        self.failure: RouterError | None = None
        # Taken from its worker, which fell silent, to be given to another; what that costs is paid for.
        self.failed_over = False
        self.prepaid = False

    @property
    def worker(self) -> str:
        """The id of the worker that was chosen last; empty while there is none."""
        return self.record.worker if self.record else ""
