"""Holders of different keys: kept apart in the engines' caches, and from living at each other's expense."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from loadtest.fleet import until
from router.prompt.salting import tenant_salt
from tests.whole.rig import AS_ADMIN, CHAT, Call, Rig, building, chat_body, group, text_of

KEYS = {"alpha": "canary-key-alpha", "beta": "canary-key-beta", "small": "canary-key-small"}
SECRET = "canary-salt-secret"
WORKER_KEY = "canary-worker-key"
MAX_BLOCKS = 2_000
SETTINGS = f"""
auth:
  api_keys: [canary-key-unnamed]
  keys_file: KEYS
  worker_api_key: {WORKER_KEY}
tenancy:
  salt_secret: {SECRET}
  index_share: 0.4
tenants:
  small: {{max_requests: 2}}
affinity:
  max_blocks: {MAX_BLOCKS}
"""


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    directory = tmp_path_factory.mktemp("tenants")
    keys = directory / "keys"
    keys.write_text("# tenant key\n" + "".join(f"{tenant} {key}\n" for tenant, key in KEYS.items()))
    config = directory / "router.yaml"
    config.write_text(SETTINGS.replace("KEYS", str(keys)))
    with building(directory) as build:
        rig = build(group("pair", 2, api_key=WORKER_KEY), config=config)
        rig.secrets |= {*KEYS.values(), SECRET, WORKER_KEY, "canary-key-unnamed"}
        yield rig


def as_tenant(tenant: str) -> dict[str, str]:
    return {"authorization": f"Bearer {KEYS[tenant]}"}


def say(rig: Rig, tenant: str, text: str, **more: Any) -> httpx.Response:
    """One chat request of a tenant."""
    return rig.post(CHAT, chat_body(text, model="pair", **more), headers=as_tenant(tenant))


def last_record(rig: Rig) -> Any:
    """The last request that a worker has got."""
    found = [record for worker in rig.groups["pair"] for record in rig.records(worker, bodies=True)]
    return max(found, key=lambda record: record.arrived_at)


@pytest.mark.parametrize("own", [None, "mine"])
@pytest.mark.parametrize("stream", [False, True])
def test_the_worker_gets_the_tenants_salt_and_every_other_byte_as_it_was(
    rig: Rig, own: str | None, stream: bool
) -> None:
    salt = b"" if own is None else b',"cache_salt": "%b"' % own.encode()
    body = b'{ "model":"pair", "odd":1.50,"messages":[{"role":"user","content":"h\\u00e4"}] %b,"stream":%b}' % (
        salt,
        str(stream).lower().encode(),
    )
    assert rig.post(CHAT, body, headers=as_tenant("alpha")).status_code == 200
    expected = tenant_salt(SECRET.encode(), "alpha", own).encode()
    got = last_record(rig).body
    if own is None:
        assert got == b'{"cache_salt":"%b",' % expected + body[1:]
    else:
        assert got == body.replace(b'"mine"', b'"%b"' % expected)


def test_clients_keys_end_at_the_router(rig: Rig) -> None:
    headers = {"x-api-key": KEYS["alpha"], "x-other": "passes"}
    assert rig.post(CHAT, chat_body("whose key", model="pair"), headers=headers).status_code == 200
    seen = {name.decode(): value.decode() for name, value in last_record(rig).headers}
    assert seen["authorization"] == f"Bearer {WORKER_KEY}"
    assert seen["x-other"] == "passes"
    assert not any(key in value for key in KEYS.values() for value in seen.values())


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer wrong"}, {"x-api-key": "alpha"}])
def test_without_a_key_nobody_is_served(rig: Rig, headers: dict[str, str]) -> None:
    answer = rig.post(CHAT, chat_body("nobody", model="pair"), headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
    assert rig.http.get(f"{rig.front}/v1/models", headers=headers).status_code == 401
    assert rig.http.get(f"{rig.front}/v1/models", headers=as_tenant("beta")).status_code == 200


def test_a_prompt_of_one_tenant_is_new_for_another_and_known_for_itself(rig: Rig) -> None:
    text = text_of("what both of them ask", 8_000)
    first = say(rig, "alpha", text)
    again = say(rig, "alpha", text)
    other = say(rig, "beta", text)
    forged = say(rig, "beta", text, cache_salt=tenant_salt(SECRET.encode(), "alpha", None))
    assert [rig.decision(answer)["matched_blocks"] > 0 for answer in (first, again, other, forged)] == [
        False,
        True,
        False,
        False,
    ]
    cached = [
        (answer.json()["usage"]["prompt_tokens_details"] or {}).get("cached_tokens", 0) > 500
        for answer in (first, again, other, forged)
    ]
    assert cached == [False, True, False, False]


def _with_leave_to_send(rig: Rig, tenant: str, length: int) -> socket.socket:
    """A connection on which a request has begun whose body is awaited."""
    url = httpx.URL(rig.front)
    connection = socket.create_connection((url.host, url.port), timeout=20)
    connection.sendall(
        f"POST {CHAT} HTTP/1.1\r\nhost: router\r\nauthorization: Bearer {KEYS[tenant]}\r\n"
        f"content-length: {length}\r\nexpect: 100-continue\r\n\r\n".encode()
    )
    assert connection.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
    return connection


def test_a_tenant_has_so_many_requests_under_way_and_no_more(rig: Rig) -> None:
    stall = json.dumps({"kind": "stall", "seconds": 30})
    body = json.dumps(chat_body("held", model="pair")).encode()
    before = rig.arrived("pair")
    headers = {**as_tenant("small"), "content-type": "application/json", "x-sim-fault": stall}
    # Its head comes while there is room, and its body when there is none any more.
    early = _with_leave_to_send(rig, "small", len(body))
    held = [Call(rig.front, CHAT, body, headers) for _ in range(2)]
    rig.sent += 3
    try:
        for _ in until(20, "the held requests to arrive"):
            if rig.arrived("pair") >= before + 2:
                break
        answer = say(rig, "small", "one too many")
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
        error = answer.json()["error"]
        assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
        assert say(rig, "beta", "another tenant").status_code == 200
        assert rig.metric("router_tenant_requests", tenant="small") == 2
        early.sendall(body)
        assert early.recv(65536).startswith(b"HTTP/1.1 429 ")
        assert rig.metric("router_tenant_refused_total", tenant="small") == 2
    finally:
        early.close()
        for call in held:
            call.close()
    for _ in until(5, "the tenant's requests to end"):
        if rig.metric("router_tenant_requests", tenant="small") == 0:
            break
    assert say(rig, "small", "room again").status_code == 200


def test_what_would_become_of_a_request_is_told_for_a_tenant(rig: Rig) -> None:
    text = text_of("what alpha alone has asked", 4_000)
    say(rig, "alpha", text)
    matched = []
    for tenant in ("alpha", "beta", "default"):
        url = f"{rig.front}/router/explain?tenant={tenant}"
        answer = rig.http.post(url, json=chat_body(text, model="pair"), headers=AS_ADMIN)
        matched.append(answer.json()["matched_blocks"] > 0)
    assert matched == [True, False, False]


@pytest.mark.parametrize("field", ["n", "best_of"])
@pytest.mark.parametrize("value", [129, 16_384, 1e9, "4096"])
def test_x12_a_request_for_very_many_answers_is_refused(rig: Rig, field: str, value: object) -> None:
    before = rig.arrived("pair")
    answer = say(rig, "alpha", "many", **{field: value})
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (400, "invalid_request_error", "n")
    assert rig.arrived("pair") == before


def test_x10_a_flood_of_one_tenant_leaves_the_others_their_memory(rig: Rig) -> None:
    text = text_of("what beta has been talking about for long", 20_000)
    say(rig, "beta", text)
    for number in range(2 * MAX_BLOCKS // 30):
        assert say(rig, "alpha", f"{number} " + text_of(f"flood {number}", 16_000), max_tokens=1).status_code == 200
    assert rig.decision(say(rig, "beta", text))["reason"] == "hit"
    blocks = rig.metric("router_tenant_blocks", tenant="alpha")
    assert blocks <= 0.95 * MAX_BLOCKS + 100
    assert rig.metric("router_index_blocks") <= MAX_BLOCKS
    assert rig.http.get(f"{rig.front}/router/workers", headers=AS_ADMIN).status_code == 200


def test_the_tenants_of_the_file_are_all_that_metrics_name(rig: Rig) -> None:
    rig.post(CHAT, chat_body("who", model="pair"), headers={"authorization": "Bearer somebody-else"})
    text = rig.routers[0].metrics()
    assert 'tenant="somebody' not in text
    assert all(key not in text for key in [*KEYS.values(), SECRET, WORKER_KEY])
    assert {line.split('"')[1] for line in text.splitlines() if line.startswith("router_tenant_blocks{")} == {
        *KEYS,
        "default",
    }
