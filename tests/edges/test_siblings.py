"""The control planes of several processes answer as one."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from router.siblings import Answer, Member, Question, Siblings, ask, changed

Json = dict[str, Any]


class Control:
    """Stands in for one process's control plane: counts what it is asked."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.asked: list[tuple[str, str, bytes]] = []
        self.status = 200

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        self.asked.append((scope["method"], scope["path"], body))
        if scope["path"] == "/metrics":
            text = f'# HELP a_total Help.\n# TYPE a_total counter\na_total{{process="{self.number}"}} {self.number}.0\n'
            text += f'# HELP b Help.\n# TYPE b gauge\nb{{process="{self.number}"}} 0.0\n'
            content = text.encode()
        elif scope["path"] == "/router/decisions":
            found = [] if b"none" in scope["query_string"] and self.number != 2 else [2, 1]
            told = [{"at": 10.0 * age + self.number} for age in found]
            content = msgspec.json.encode({"replica": self.number, "decisions": told})
        else:
            content = b"%d" % self.number
        headers = [(b"content-length", b"%d" % len(content)), (b"x-number", b"%d" % self.number)]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": content})


class Group:
    """Processes of one port, within this one."""

    def __init__(self, count: int) -> None:
        token = secrets.token_hex(8)
        self.controls = [Control(number) for number in range(1, count + 1)]
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in self.controls]
        self.parents = [parent for parent, _ in pairs]
        self.members = [Member(n, count, token, child) for n, (_, child) in enumerate(pairs, 1)]
        self.siblings = [Siblings(*pair) for pair in zip(self.members, self.controls, strict=True)]

    async def start(self) -> None:
        for one in self.siblings:
            await one.start()

    def close(self) -> None:
        for one in self.siblings:
            one.close()
        for end in [*self.parents, *(member.channel for member in self.members)]:
            end.close()

    async def ask(self, method: str, path: str, *, query: bytes = b"", body: bytes = b"") -> Answer:
        return await ask(self.siblings[0], Question(method, path, query, [(b"host", b"here")], body))


@pytest.fixture
async def group() -> AsyncIterator[Group]:
    group = Group(3)
    await group.start()
    yield group
    group.close()


async def test_a_scrape_has_each_metric_once_with_the_samples_of_all(group: Group) -> None:
    answer = await group.ask("GET", "/metrics")
    assert answer.body.decode().splitlines() == [
        "# HELP a_total Help.",
        "# TYPE a_total counter",
        'a_total{process="1"} 1.0',
        'a_total{process="2"} 2.0',
        'a_total{process="3"} 3.0',
        "# HELP b Help.",
        "# TYPE b gauge",
        'b{process="1"} 0.0',
        'b{process="2"} 0.0',
        'b{process="3"} 0.0',
    ]
    assert dict(answer.headers)[b"content-length"] == b"%d" % len(answer.body)
    assert dict(answer.headers)[b"x-number"] == b"1"


async def test_decisions_of_all_come_newest_first_and_no_more_than_were_asked_for(group: Group) -> None:
    answer = await group.ask("GET", "/router/decisions", query=b"limit=4&request_id=x")
    assert [record["at"] for record in msgspec.json.decode(answer.body)["decisions"]] == [23.0, 22.0, 21.0, 13.0]


async def test_who_had_the_decision_is_named(group: Group) -> None:
    answer = await group.ask("GET", "/router/decisions", query=b"request_id=none-here")
    assert msgspec.json.decode(answer.body)["replica"] == 2


async def test_one_that_does_not_answer_is_left_out(group: Group) -> None:
    group.siblings[1].close()
    await asyncio.sleep(0)
    answer = await group.ask("GET", "/metrics")
    assert b'process="3"' in answer.body
    assert b'process="2"' not in answer.body


async def test_other_routes_are_answered_by_the_process_that_was_asked(group: Group) -> None:
    for method, path in [("GET", "/ready"), ("GET", "/router/workers"), ("POST", "/router/explain")]:
        assert (await group.ask(method, path)).body == b"1"
    assert [len(control.asked) for control in group.controls] == [3, 0, 0]


@pytest.mark.parametrize(("method", "path"), [("POST", "/router/workers"), ("DELETE", "/router/workers/905487f1")])
async def test_a_change_is_made_on_all_and_the_parent_is_told(group: Group, method: str, path: str) -> None:
    answer = await group.ask(method, path, body=b"what")
    assert (answer.status, answer.body) == (200, b"1")
    assert all(control.asked == [(method, path, b"what")] for control in group.controls)
    told = msgspec.msgpack.decode(group.parents[0].recv(100_000), type=Question)
    assert (told.method, told.path, told.body) == (method, path, b"what")


async def test_a_change_that_is_refused_here_is_made_nowhere(group: Group) -> None:
    group.controls[0].status = 401
    assert (await group.ask("POST", "/router/workers")).status == 401
    assert [len(control.asked) for control in group.controls] == [1, 0, 0]


async def test_a_change_that_not_all_have_made_is_to_be_repeated(group: Group) -> None:
    group.siblings[2].close()
    await asyncio.sleep(0)
    answer = await group.ask("POST", "/router/workers/905487f1/drain")
    assert answer.status == 503
    assert b"2 of 3 processes" in answer.body
    assert (b"retry-after", b"1") in answer.headers
    group.parents[0].setblocking(False)
    with pytest.raises(BlockingIOError):
        group.parents[0].recv(100)


def test_a_removal_repeated_succeeds_where_any_process_still_had_the_worker() -> None:
    question = Question("DELETE", "/router/workers/x", b"", [], b"")
    gone, done = Answer(404, [], b"gone"), Answer(200, [], b"done")
    assert changed(question, gone, [gone, done]).body == b"done"
    assert changed(question, gone, [gone, gone]).status == 404
    assert changed(question, gone, [done, None]).status == 503


async def test_a_new_process_repeats_the_changes_that_were_made_before_it() -> None:
    changes = tuple(msgspec.msgpack.encode(Question("POST", path, b"", [], b"x")) for path in ("/a", "/b"))
    parent, child = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    control = Control(1)
    siblings = Siblings(Member(1, 1, secrets.token_hex(8), child, changes), control)
    await siblings.start()
    assert [path for _, path, _ in control.asked] == ["/a", "/b"]
    siblings.close()
    parent.close()
    child.close()


async def test_a_new_process_waits_for_its_place_until_the_one_before_gives_it_up(group: Group) -> None:
    successor = Siblings(group.members[1], Control(7))
    starting = asyncio.create_task(successor.start())
    await asyncio.sleep(0)
    assert not starting.done()
    group.siblings[1].close()
    await starting
    assert b'process="7"' in (await group.ask("GET", "/metrics")).body
    successor.close()


@pytest.mark.parametrize("garbage", [b"", b"\xff\xff\xff\xff", b"\0\0\0\3abc", b"\0\0\0\1\x90"])
async def test_garbage_on_the_socket_hurts_nobody(group: Group, garbage: bytes) -> None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(group.members[1].address(2))
    reader, writer = await asyncio.open_unix_connection(sock=connection)
    writer.write(garbage)
    writer.write_eof()
    assert await reader.read() == b""
    writer.close()
    assert b'process="2"' in (await group.ask("GET", "/metrics")).body
