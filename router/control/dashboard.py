"""The dashboard: one static page that listens to `/router/events`. It holds no data, so it needs no key itself."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

from starlette.responses import Response

STATIC = Path(__file__).parent / "static"
# In the order in which they define what the next ones use.
SCRIPTS = ("core", "charts", "board", "explain", "live")


class Dashboard:
    """`GET /router/dashboard`; with `locked` the page asks for the key before it asks for anything else."""

    def __init__(self, *, locked: bool) -> None:
        self._page = assembled(locked=locked)
        self._headers = {
            "cache-control": "no-cache",
            "content-security-policy": content_policy(self._page),
            "referrer-policy": "no-referrer",
            "x-content-type-options": "nosniff",
        }

    async def page(self) -> Response:
        """The page."""
        return Response(self._page, headers=self._headers, media_type="text/html; charset=utf-8")


def assembled(*, locked: bool) -> bytes:
    """The page with its style and scripts in it, so that it is one file to whoever saves it."""
    page = (STATIC / "dashboard.html").read_bytes()
    script = b"\n".join((STATIC / f"dashboard-{name}.js").read_bytes() for name in SCRIPTS)
    page = page.replace(b"<style></style>", b"<style>\n" + (STATIC / "dashboard.css").read_bytes() + b"</style>")
    page = page.replace(b"<script></script>", b"<script>\n" + script + b"</script>")
    return page.replace(b'<html lang="en">', b'<html lang="en" data-locked="yes">') if locked else page


def content_policy(page: bytes) -> str:
    """A policy that allows exactly the page's own script and style, and requests to the router alone."""
    script, style = (_hashes(page, tag) for tag in (b"script", b"style"))
    return (
        f"default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _hashes(page: bytes, tag: bytes) -> str:
    bodies = re.findall(b"<" + tag + b">(.*?)</" + tag + b">", page, re.DOTALL)
    return " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(body).digest()).decode()}'" for body in bodies)
