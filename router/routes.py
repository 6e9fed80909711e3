"""The data plane's routes: matched exactly, nothing else reaches a worker."""

from __future__ import annotations

from dataclasses import dataclass

from router.prompt import Form


@dataclass(frozen=True, slots=True)
class Route:
    """One path of the outer contract: its verb, the shape of its body, and whether its prompt has a reusable prefix."""

    path: str
    form: Form
    method: str = "POST"
    media: bool = False

    @property
    def target(self) -> bytes:
        return self.path.encode()


def _routes(form: Form, *paths: str) -> list[Route]:
    return [Route(path, form) for path in paths]


_ALL = [
    Route("/v1/chat/completions", Form.CHAT, media=True),
    *_routes(Form.COMPLETIONS, "/v1/completions"),
    Route("/v1/responses", Form.RESPONSES, media=True),
    Route("/v1/messages", Form.MESSAGES, media=True),
    *_routes(Form.OTHER, "/v1/messages/count_tokens", "/v1/embeddings", "/v1/score", "/score"),
    *_routes(Form.OTHER, "/v1/rerank", "/rerank", "/v2/rerank", "/pooling", "/classify", "/tokenize", "/detokenize"),
    Route("/v1/audio/transcriptions", Form.MULTIPART, media=True),
    Route("/v1/audio/translations", Form.MULTIPART, media=True),
]
ROUTES: dict[str, Route] = {route.path: route for route in _ALL}

_RESPONSE_ID = "/v1/responses/"


def stored_response(path: str) -> tuple[str, str] | None:
    """(id, "" or "cancel") for `/v1/responses/{id}` and `/v1/responses/{id}/cancel`, else None."""
    if not path.startswith(_RESPONSE_ID):
        return None
    name, _, action = path.removeprefix(_RESPONSE_ID).partition("/")
    if not name or len(name) > 256 or not name.isascii() or not name.replace("_", "").replace("-", "").isalnum():
        return None
    return (name, action) if action in ("", "cancel") else None
