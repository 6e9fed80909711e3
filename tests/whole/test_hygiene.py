"""A canary in prompts, keys and headers turns up nowhere but where its owner sent it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from loadtest.fleet import until
from tests.whole.invariants import check_invariants
from tests.whole.rig import ADMIN_KEY, AS_ADMIN, CANARY, CHAT, Rig, building, chat_body, group, samples

CLIENT_KEY, OTHER_KEY, WORKER_KEY, SALT_SECRET, HASH_SECRET = (
    f"canary-of-{what}" for what in ("alpha", "beta", "the-workers", "salts", "hashes")
)
IN_HEADERS = "canary-of-the-headers"
# What the router may repeat to whoever sent it, and to nobody else.
ECHOED = "canary-that-is-echoed"
SECRETS = (CANARY, CLIENT_KEY, OTHER_KEY, WORKER_KEY, SALT_SECRET, HASH_SECRET, IN_HEADERS, ADMIN_KEY, ECHOED)
HEADERS = {
    "authorization": f"Bearer {CLIENT_KEY}",
    "cookie": f"session={IN_HEADERS}",
    "x-custom": IN_HEADERS,
    "user-agent": IN_HEADERS,
    "x-forwarded-for": IN_HEADERS,
    # Not fit to be a request id, so that the router makes one.
    "x-request-id": f"not usable {IN_HEADERS}",
}
RESET = {"kind": "reset", "after": 2, "unit": "event"}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    keys = tmp_path / "keys"
    keys.write_text(f"alpha {CLIENT_KEY}\nbeta {OTHER_KEY}\n")
    settings = {
        "ROUTER_AUTH__KEYS_FILE": str(keys),
        "ROUTER_AUTH__WORKER_API_KEY": WORKER_KEY,
        "ROUTER_TENANCY__SALT_SECRET": SALT_SECRET,
        "ROUTER_AFFINITY__HASH_SECRET": HASH_SECRET,
        "ROUTER_LOG__LEVEL": "debug",
        "ROUTER_DECISION_FILE__PATH": str(tmp_path / "decisions.jsonl"),
    }
    with building(tmp_path) as build:
        yield build(group("pair", 2, api_key=WORKER_KEY), settings=settings)


def odd_requests() -> list[tuple[str, str, bytes]]:
    """Method, path and body of requests of every fate."""
    fine = json.dumps(chat_body(f"{CANARY} ", model="pair")).encode()
    canary = CANARY.encode()
    return [
        ("POST", f"{CHAT}?api_key={IN_HEADERS}", fine),
        ("POST", CHAT, fine[:-2]),
        ("POST", CHAT, b'{"model":"pair","messages":"%b"}' % canary),
        ("POST", CHAT, b'{"model":"pair","cache_salt":["%b"],"messages":[]}' % canary),
        ("POST", CHAT, b'{"model":"pair","cache_salt":"%b","messages":[{"role":"user","content":"x"}]}' % canary),
        ("POST", CHAT, b'{"model":["%b"],"messages":[]}' % canary),
        ("POST", CHAT, b'{"model":"%b","messages":[]}' % ECHOED.encode()),
        ("POST", CHAT, b'{"model":"pair","n":9999,"messages":[{"content":"%b"}]}' % canary),
        ("POST", CHAT, b"%b\xff" % canary),
        ("POST", "/v1/completions", b'{"model":"pair","prompt":"%b","max_tokens":2}' % canary),
        ("POST", "/v1/embeddings", b'{"model":"pair","input":"%b"}' % canary),
        ("POST", "/v1/audio/transcriptions", b"--%b\r\n" % canary),
        ("PUT", CHAT, canary),
    ]


def shown_by_the_router(rig: Rig) -> dict[str, str]:
    """Everything that it says of itself, to the operator and to anybody."""
    url = rig.routers[0].url
    shown = {"log": rig.routers[0].log.read_text(), "metrics": rig.routers[0].metrics()}
    paths = [
        "/router/decisions?limit=1000",
        "/router/state",
        "/router/workers",
        "/router/dashboard",
        "/ready",
        "/health",
    ]
    for path in paths:
        shown[path] = rig.http.get(url + path, headers=AS_ADMIN).text
    shown["explain"] = json.dumps(rig.explain(chat_body(CANARY, model="pair")))
    shown["decision file"] = (rig.directory / "decisions.jsonl").read_text()
    return shown


def test_canaries_turn_up_nowhere(rig: Rig) -> None:
    answers: list[httpx.Response] = []
    for method, path, body in odd_requests():
        headers = {"content-type": "application/json", **HEADERS}
        answers.append(rig.http.request(method, rig.front + path, content=body, headers=headers))
        rig.sent += 1
    unauthorized = rig.post(CHAT, chat_body(CANARY, model="pair"), headers={"authorization": f"Bearer {IN_HEADERS}"})
    assert unauthorized.status_code == 401
    for path in (f"/{ECHOED}", f"/v1/responses/{ECHOED}/x", f"/router/workers/{ECHOED}/drain"):
        rig.http.post(rig.front + path, headers={**HEADERS, **AS_ADMIN}, content=CANARY.encode())
    broken = rig.open(chat_body(CANARY, model="pair", stream=True), fault=RESET).rest().decode("latin-1")
    assert "401" in broken.split("\r\n")[0]
    told = rig.post(CHAT, chat_body(CANARY, model="pair", stream=False), headers=HEADERS, fault={"kind": "reset"})
    for _ in until(10, "the decisions to be written"):
        if (rig.directory / "decisions.jsonl").stat().st_size and "[PREFIX]" in rig.routers[0].log.read_text():
            break
    for place, text in shown_by_the_router(rig).items():
        for secret in SECRETS:
            assert secret not in text, f"{secret} in {place}"
    for answer in [*answers, unauthorized, told]:
        from_router = answer.status_code >= 400
        said = (answer.text if from_router else "") + str(answer.headers)
        for secret in set(SECRETS) - {ECHOED}:
            assert secret not in said, f"{secret} in an answer: {said}"
    check_invariants(rig)


def test_labels_are_the_routers_words_and_never_the_clients(rig: Rig) -> None:
    for number in range(40):
        body = {"model": f"{ECHOED}-{number}", "messages": []}
        rig.post(f"{CHAT}?{number}", body, headers={**HEADERS, "x-request-id": f"id-{number}"})
        rig.http.get(f"{rig.front}/{ECHOED}/{number}", headers=HEADERS)
        rig.post(f"/v1/responses/resp_{number}/cancel", {}, headers=HEADERS)
    text = rig.routers[0].metrics()
    labels = {(name, value) for row, _ in samples(text, "router_requests_total") for name, value in row.items()}
    assert {value for name, value in labels if name == "endpoint"} <= {"", CHAT, "/v1/responses/{id}"}
    assert {value for name, value in labels if name == "model"} <= {"", "pair"}
    assert len(text.splitlines()) < 1_000
