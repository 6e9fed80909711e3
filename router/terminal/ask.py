"""Questions to running replicas, and what went wrong with them in words."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

KEY_VARIABLE: Final = "ROUTER_AUTH__ADMIN_KEY"
TIMEOUT_SECONDS: Final = 5.0
DEFAULT_URL: Final = "http://127.0.0.1:8080"
Json = dict[str, Any]


class Trouble(Exception):
    """Why there is no answer; `locked` if a key would open the door."""

    def __init__(self, message: str, *, locked: bool = False) -> None:
        super().__init__(message)
        self.locked = locked


class Refused(Exception):
    """The router's own word on a request: its status, code and message."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"{status} {code}: {message}")


class Replica:
    """One replica at a URL. `key` is the admin's, by default from the variable that the router reads too."""

    def __init__(self, url: str, key: str | None = None, *, transport: httpx.BaseTransport | None = None) -> None:
        self.url = url.rstrip("/")
        if not url.startswith(("http://", "https://")):
            raise Trouble(f"{url}: a replica's URL begins with http:// or https://")
        key = key or os.environ.get(KEY_VARIABLE)
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self._keyed = bool(key)
        try:
            # A proxy of the environment would be asked for addresses that only this machine may know.
            self._client = httpx.Client(
                base_url=self.url, headers=headers, timeout=TIMEOUT_SECONDS, trust_env=False, transport=transport
            )
        except (ValueError, httpx.InvalidURL) as error:
            raise Trouble(f"{url}: no URL ({error})") from None

    def close(self) -> None:
        self._client.close()

    def get(self, path: str) -> Json:
        """The JSON answer of a control route; raises Trouble."""
        return self._read(self._send("GET", path))

    def post(self, path: str, body: bytes, params: Mapping[str, str]) -> Json:
        """The same with a body; raises Refused too, where the router does not like the body."""
        return self._read(self._send("POST", path, body, params))

    def text(self, path: str) -> str:
        """An answer that is no JSON."""
        response = self._send("GET", path)
        if response.status_code != 200:
            raise Trouble(f"{self.url}{path}: status {response.status_code}")
        return response.text

    def _send(
        self, method: str, path: str, body: bytes | None = None, params: Mapping[str, str] | None = None
    ) -> httpx.Response:
        try:
            return self._client.request(method, path, content=body, params=params)
        except httpx.ConnectError as error:
            raise Trouble(f"{self.url}: no router there ({_reason(error)})") from None
        except httpx.TimeoutException:
            raise Trouble(f"{self.url}: no answer within {TIMEOUT_SECONDS:.0f} s") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Trouble(f"{self.url}: {_reason(error)}") from None

    def _hint(self) -> str:
        path = urlsplit(self.url).path
        return f"; is it there without {path}?" if path else ""

    def _read(self, response: httpx.Response) -> Json:
        try:
            found = response.json()
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise Trouble(f"{self.url}: something answers there, but it is no prefix-router")
        if response.status_code == 200:
            return found
        error = found.get("error")
        error = error if isinstance(error, dict) else {}
        code, message = str(error.get("code")), str(error.get("message"))
        if response.status_code == 401:
            if self._keyed:
                raise Trouble(f"{self.url}: the admin key is not the right one", locked=True)
            raise Trouble(f"{self.url}: needs the admin key: --admin-key, or {KEY_VARIABLE}", locked=True)
        if code == "unknown_route" or response.status_code == 405 or not error:
            raise Trouble(
                f"{self.url}: something answers there, but it is no prefix-router of this version{self._hint()}"
            )
        raise Refused(response.status_code, code, message)


def _reason(error: Exception) -> str:
    text = str(error)
    return text.partition("] ")[2] or text or type(error).__name__
