"""What tracing is to a request: a span that begins with it, and goes on at the worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from router.dataplane.client import Client
from router.dataplane.headers import Headers
from router.errors import SettingsError
from router.routes import Route
from router.settings import TracingSettings

if TYPE_CHECKING:
    from router.dataplane.job import Job


class Span(Protocol):
    """One request's span."""

    def carry(self, headers: Headers) -> Headers:
        """The request's headers as the worker gets them: its own span becomes a child of this one."""
        ...


class Tracer(Protocol):
    """Begins spans and completes them; one for all of a process."""

    def begin(self, client: Client, route: Route) -> Span:
        """A span for a request that begins now."""
        ...

    def end(self, job: Job) -> None:
        """The request has ended."""
        ...

    def close(self) -> None:
        """Let go what is left, within seconds; blocks for as long."""
        ...

    @property
    def results(self) -> Mapping[str, int]:
        """What became of the spans."""
        ...


def open_tracing(settings: TracingSettings, replica: str) -> Tracer | None:
    """Tracing as the settings want it, or None; raises SettingsError without the packages that it needs."""
    if settings.endpoint is None:
        return None
    try:
        from router.dataplane.tracing import Tracing
    except ImportError:
        raise SettingsError(["tracing.endpoint: needs pip install 'prefix-router[otel]'"]) from None
    return Tracing(settings, replica)
