"""The dashboard: one static page that asks `/router/state` every second. It holds no data, so it needs no key."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

from starlette.responses import Response

PAGE = Path(__file__).parent / "static" / "dashboard.html"


class Dashboard:
    """`GET /router/dashboard`."""

    def __init__(self) -> None:
        self._page = PAGE.read_bytes()
        self._headers = {
            "cache-control": "no-cache",
            "content-security-policy": content_policy(self._page),
            "referrer-policy": "no-referrer",
            "x-content-type-options": "nosniff",
        }

    async def page(self) -> Response:
        """The page."""
        return Response(self._page, headers=self._headers, media_type="text/html; charset=utf-8")


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
