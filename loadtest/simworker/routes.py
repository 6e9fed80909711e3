"""Which handler answers which route, and what is checked before it."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from loadtest.simworker import audio, chat, control, messages, pooling, responses, simroutes
from loadtest.simworker.answers import ApiError, ErrorForm, invalid_body
from loadtest.simworker.config import SimConfig
from loadtest.simworker.exchange import Exchange
from loadtest.simworker.outlet import ResponseOver

if TYPE_CHECKING:
    from loadtest.simworker.worker import SimWorker

Work = Coroutine[object, object, None]
Handler = Callable[["SimWorker", Exchange], Work | None]


@dataclass(frozen=True, slots=True)
class Route:
    """`json`: the body must be declared as JSON. `form`: how the route words its errors."""

    handler: Handler
    json: bool = False
    form: ErrorForm = "openai"


_RETRIEVE = {"GET": Route(responses.retrieve)}
_CANCEL = {"POST": Route(responses.cancel)}
Table = dict[str, dict[str, Route]]


def table(config: SimConfig) -> Table:
    """The routes of a worker with this configuration."""
    routes: Table = {
        "/version": _get(control.version),
        "/load": _get(control.load),
        "/v1/models": _get(control.models),
        "/v1/chat/completions": _post(chat.chat_completions),
        "/v1/completions": _post(chat.completions),
        "/v1/responses": _post(responses.responses),
        "/v1/messages": _post(messages.messages, form="anthropic"),
        "/v1/messages/count_tokens": _post(messages.count_tokens, form="anthropic"),
        "/v1/embeddings": _post(pooling.embeddings),
        "/pooling": _post(pooling.pooling),
        "/classify": _post(pooling.classify),
        "/tokenize": _post(pooling.tokenize),
        "/detokenize": _post(pooling.detokenize),
        "/v1/audio/transcriptions": _post(audio.transcriptions, json=False),
        "/v1/audio/translations": _post(audio.translations, json=False),
        "/sim/requests": _get(simroutes.requests),
        "/sim/state": _get(simroutes.state),
        "/sim/reset": _post(simroutes.reset, json=False),
        "/sim/refuse": _post(simroutes.refuse, json=False),
        "/sim/cache-faults": _post(simroutes.cache_faults, json=False),
        "/sim/restart": _post(simroutes.restart, json=False),
        "/sim/faults": {method: Route(simroutes.faults) for method in ("GET", "POST", "DELETE")},
    }
    routes |= {path: _post(pooling.score) for path in ("/score", "/v1/score")}
    routes |= {path: _post(pooling.rerank) for path in ("/rerank", "/v1/rerank", "/v2/rerank")}
    if config.health:
        routes["/health"] = _get(control.health)
        routes["/ping"] = {"GET": Route(control.health), "POST": Route(control.health)}
    if config.metrics:
        routes["/metrics"] = _get(control.show_metrics)
    if config.dev_mode:
        routes |= _dev_routes()
    return routes


def _dev_routes() -> Table:
    return {
        "/reset_prefix_cache": _post(control.reset_prefix_cache, json=False),
        "/sleep": _post(control.sleep, json=False),
        "/wake_up": _post(control.wake_up, json=False),
        "/is_sleeping": _get(control.is_sleeping),
        "/server_info": _get(control.server_info),
    }


def _get(handler: Handler) -> dict[str, Route]:
    return {"GET": Route(handler)}


def _post(handler: Handler, *, json: bool = True, form: ErrorForm = "openai") -> dict[str, Route]:
    return {"POST": Route(handler, json, form)}


def dispatch(worker: SimWorker, exchange: Exchange) -> Work | None:
    """Answer at once, or return what will."""
    request = exchange.request
    if not _authorised(worker, exchange):
        exchange.reply_json({"error": "Unauthorized"}, 401)
        return None
    methods = worker.routes.get(request.path) or _with_id(request.path)
    if methods is None:
        _unknown(worker, exchange)
        return None
    route = methods.get(request.method)
    if route is None:
        allowed = ", ".join(methods).encode()
        exchange.reply_json({"detail": "Method Not Allowed"}, 405, ((b"allow", allowed),))
        return None
    try:
        if route.json:
            _check_content_type(exchange)
        work = route.handler(worker, exchange)
    except ApiError as error:
        exchange.reply(error.status, error.body(route.form))
        return None
    except ValueError as error:
        refused = invalid_body(str(error))
        exchange.reply(refused.status, refused.body())
        return None
    except Exception:
        print(traceback.format_exc(), file=sys.stderr)
        exchange.reply(500, ApiError(500, "the simulation failed").body(route.form))
        return None
    return None if work is None else _guarded(exchange, work, route.form)


def _with_id(path: str) -> dict[str, Route] | None:
    """The two routes that have an id in their path."""
    if not path.startswith(responses.PATH):
        return None
    answer_id, _, rest = path.removeprefix(responses.PATH).partition("/")
    if not answer_id or rest not in ("", "cancel"):
        return None
    return _CANCEL if rest else _RETRIEVE


async def _guarded(exchange: Exchange, work: Work, form: ErrorForm) -> None:
    """Whatever goes wrong in a handler ends the exchange, and nothing else."""
    try:
        await work
    except ApiError as error:
        exchange.reply(error.status, error.body(form))
    except ResponseOver:
        exchange.die(rst=False)
    except Exception:
        print(traceback.format_exc(), file=sys.stderr)
        exchange.die(rst=False)


def _authorised(worker: SimWorker, exchange: Exchange) -> bool:
    key = worker.config.api_key
    if key is None or not exchange.request.path.startswith(("/v1", "/v2")) or exchange.request.method == "OPTIONS":
        return True
    return exchange.request.header(b"authorization") == f"Bearer {key}"


def _check_content_type(exchange: Exchange) -> None:
    declared = exchange.request.header(b"content-type") or ""
    if declared.partition(";")[0].strip().lower() != "application/json":
        raise invalid_body("Unsupported Media Type: Only 'application/json' is allowed")


def _unknown(worker: SimWorker, exchange: Exchange) -> None:
    path = exchange.request.path
    if path.endswith("/") and path.rstrip("/") in worker.routes:
        location = path.rstrip("/").encode("latin-1")
        exchange.reply(307, b"", headers=((b"location", location),))
        return
    exchange.reply(404, msgspec.json.encode({"detail": "Not Found"}))
