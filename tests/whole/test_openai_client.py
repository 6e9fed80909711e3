"""The ordinary `openai` client through nginx and two replicas: every form it speaks, and every way it can fail."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.whole.invariants import check_invariants
from tests.whole.rig import CANARY, Json, Rig, building, group, text_of

pytestmark = [pytest.mark.redis, pytest.mark.nginx]
FAULT = "x-sim-fault"


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    settings = {"ROUTER_TIMEOUTS__STREAM_IDLE": "1", "ROUTER_TIMEOUTS__FIRST_BYTE": "2"}
    with building(tmp_path_factory.mktemp("openai")) as build:
        rig = build(group("pair", 2, max_model_len=8_192), replica_count=2, nginx=True, settings=settings)
        yield rig


class Counted:
    """Counts what a client sends, its own retries included."""

    def __init__(self, rig: Rig) -> None:
        self.requests = 0
        self._rig = rig

    def __call__(self, request: Any) -> None:
        self.requests += 1
        self._rig.sent += "/models" not in request.url.path


@pytest.fixture
def counted(deployment: Rig) -> Counted:
    return Counted(deployment)


@pytest.fixture
def client(deployment: Rig, counted: Counted) -> Iterator[openai.OpenAI]:
    transport = openai.DefaultHttpxClient(trust_env=False, timeout=30, event_hooks={"request": [counted]})
    with openai.OpenAI(
        base_url=f"{deployment.front}/v1", api_key="any", http_client=transport, max_retries=0
    ) as client:
        yield client
    check_invariants(deployment)


def said(text: str) -> Any:
    return [{"role": "user", "content": f"{text} {CANARY}"}]


def fault(**action: Any) -> dict[str, str]:
    return {FAULT: json.dumps(action)}


def test_chat_whole(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="pair", messages=said("hello"), max_tokens=5)
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5
    assert answer._request_id


def test_chat_stream(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="pair", messages=said("hello"), max_tokens=20, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
    assert sum(1 for piece in text if piece) == 20
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 20


def test_a_conversation_is_a_hit_from_its_second_turn_on(client: openai.OpenAI, deployment: Rig) -> None:
    messages = said(text_of("let us talk at length", 6_000))
    seen = []
    for turn in range(3):
        raw = client.chat.completions.with_raw_response.create(model="pair", messages=messages, max_tokens=5)
        seen.append((raw.headers["x-router-worker"], raw.headers["x-router-decision"].partition(";")[0]))
        message = raw.parse().choices[0].message.content
        messages = [*messages, {"role": "assistant", "content": message}, {"role": "user", "content": f"more {turn}"}]
        # nginx alternates between the replicas; on a busy machine their news may take longer than this client.
        deployment.heard({"model": "pair", "messages": messages})
    assert len({worker for worker, _ in seen}) == 1
    assert [reason for _, reason in seen] == ["miss", "hit", "hit"]


def test_completions_whole_and_stream(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="pair", prompt="once", max_tokens=4)
    assert answer.choices[0].text
    stream = client.completions.create(model="pair", prompt=[1, 2, 3], max_tokens=4, stream=True)
    assert len(list(stream)) == 4


def test_responses_whole_stream_and_stored(client: openai.OpenAI) -> None:
    answer = client.responses.create(model="pair", input="hello", max_output_tokens=4)
    assert answer.output_text
    events = list(client.responses.create(model="pair", input="hello", max_output_tokens=4, stream=True))
    assert events[-1].type == "response.completed"
    assert client.responses.retrieve(answer.id).id == answer.id
    continued = client.responses.create(model="pair", input="go on", previous_response_id=events[-1].response.id)
    assert continued.status == "completed"


def test_embeddings(client: openai.OpenAI) -> None:
    answer = client.embeddings.create(model="pair", input=["one", "two"])
    assert [item.index for item in answer.data] == [0, 1]
    assert answer.data[0].embedding


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["pair"]


# -- how it fails ----------------------------------------------------------------------------------------------

CUTS: dict[str, Json] = {
    "reset-between-events": {"kind": "reset", "unit": "event", "after": 3},
    "reset-inside-an-event": {"kind": "reset", "unit": "event", "after": 3, "extra": 20},
    "closed-between-events": {"kind": "close", "unit": "event", "after": 3},
    "silent-between-events": {"kind": "stall", "unit": "event", "after": 3, "seconds": 30},
    "silent-inside-an-event": {"kind": "stall", "unit": "event", "after": 3, "extra": 20, "seconds": 30},
    "error-of-the-engine": {"kind": "stream_error", "unit": "event", "after": 3},
}


@pytest.mark.parametrize("cut", CUTS)
def test_a_stream_that_breaks_never_looks_complete(client: openai.OpenAI, counted: Counted, cut: str) -> None:
    stream = client.chat.completions.create(
        model="pair", messages=said("will break"), max_tokens=20, stream=True, extra_headers=fault(**CUTS[cut])
    )
    seen: list[object] = []
    with pytest.raises(openai.APIError):
        seen.extend(stream)
    assert 1 <= len(seen) <= 3
    assert counted.requests == 1


@pytest.mark.parametrize("cut", ["reset", "close"])
def test_a_whole_answer_that_breaks_never_looks_complete(client: openai.OpenAI, cut: str) -> None:
    with pytest.raises(openai.APIConnectionError):
        client.chat.completions.create(
            model="pair",
            messages=said("will break"),
            max_tokens=20,
            extra_headers=fault(kind=cut, unit="body", after=40),
        )


def test_a_worker_that_resets_before_its_first_byte_is_not_noticed(client: openai.OpenAI, deployment: Rig) -> None:
    worker = deployment.groups["pair"][0]
    # Once on a connection that may have died of age, which is tried again on a new one, and once on that.
    worker.add_faults({"action": {"kind": "reset"}, "times": 2})
    before = deployment.metric("router_retries_total", cause="reset")
    number = 0
    while deployment.metric("router_retries_total", cause="reset") == before:
        number += 1
        answer = client.chat.completions.create(model="pair", messages=said(f"{number} hello"), max_tokens=2)
        assert answer.choices[0].message.content
        assert number < 40  # somewhere among these one goes to that worker first
    worker.clear_faults()


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, openai.BadRequestError),
        (422, openai.UnprocessableEntityError),
        (429, openai.RateLimitError),
        (500, openai.InternalServerError),
        (503, openai.InternalServerError),
    ],
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_refusals_of_the_worker_keep_their_class(
    client: openai.OpenAI, status: int, error: type[openai.APIStatusError], stream: bool
) -> None:
    with pytest.raises(error) as caught:
        client.chat.completions.create(
            model="pair",
            messages=said("refused"),
            stream=stream,
            extra_headers=fault(kind="status", status=status, headers={"retry-after": "2"}),
        )
    assert caught.value.status_code == status
    assert "scripted" in caught.value.message
    assert caught.value.response.headers["retry-after"] == "2"
    assert caught.value.request_id


def test_errors_of_the_router_have_the_classes_that_the_client_knows(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="nobody", messages=said("hello"))
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.InternalServerError) as late:
        client.chat.completions.create(
            model="pair", messages=said("too late"), extra_headers=fault(kind="stall", seconds=30)
        )
    assert (late.value.status_code, late.value.code) == (504, "upstream_timeout")
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(model="pair", messages=said(text_of("far too long for anyone", 90_000)))
    assert long.value.status_code == 400


def test_the_clients_own_retries_reach_a_fleet_that_recovers(client: openai.OpenAI, deployment: Rig) -> None:
    for worker in deployment.groups["pair"]:
        worker.add_faults({"action": {"kind": "status", "status": 503}, "times": 2})
    patient = client.with_options(max_retries=5)
    answer = patient.chat.completions.create(model="pair", messages=said("patience"), max_tokens=2)
    assert answer.choices[0].message.content
    for worker in deployment.groups["pair"]:
        worker.clear_faults()
