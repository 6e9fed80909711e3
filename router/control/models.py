"""`/v1/models`: the union of what the workers serve, card by card as they sent it."""

from __future__ import annotations

from starlette.responses import Response

from router.control.context import ControlContext
from router.control.exchange import raw_answer
from router.control.health import RETRY_SECONDS, why_nobody_serves
from router.errors import Unavailable
from router.workers.health import State
from router.workers.registry import Registry

DOWN = (State.STARTING, State.UNREADY)


class Models:
    """A model is listed while a worker that is not down serves it; the first such worker's card stands for all.

    Ejected and draining workers still count: they are expected back, and a client that reads the list once at its
    start must not miss their models. With nothing to list the answer is 503, because an empty list with 200 would
    read as "this server has no models".
    """

    def __init__(self, context: ControlContext) -> None:
        self._registry = context.registry

    async def list(self) -> Response:
        """The list in the OpenAI form; cards are joined as bytes, so every field survives as it was."""
        cards = model_cards(self._registry)
        if not cards:
            raise Unavailable(why_nobody_serves(self._registry), retry_after=RETRY_SECONDS)
        return raw_answer(b'{"object":"list","data":[' + b",".join(cards) + b"]}")


def model_cards(registry: Registry) -> list[bytes]:
    """One card per model, in the order in which workers were added."""
    cards: dict[str, bytes] = {}
    for worker in registry:
        if worker.state not in DOWN:
            for name, model in worker.facts.models.items():
                cards.setdefault(name, model.card)
    return list(cards.values())
