"""What the terminal shows, from answers made by hand: the fleet of several replicas, and decisions in words."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from router.terminal.ask import KEY_VARIABLE, Refused, Replica, Trouble
from router.terminal.screen import View, lines
from router.terminal.style import Style, cut, length, plain
from router.terminal.words import REMOVED, WITHHELD
from router.terminal.words import lines as explained

PLAIN = Style(colour=False)
Json = dict[str, Any]


def worker(name: str = "905487f1", **changes: Any) -> Json:
    row = {
        "id": name,
        "state": "ready",
        "draining": False,
        "in_flight": {"local": 1, "all": 1},
        "slots": 8,
        "models": ["m"],
        "epoch_age_seconds": 7_300.0,
        "cache": {"enabled": True, "capacity_tokens": 131_072},
        "blocks": 1_234,
        "cached": {"prompt_tokens": 1_000, "reported_tokens": 700, "predicted_tokens": 650},
    }
    return {**row, **changes}


def state(*workers: Json, **changes: Any) -> Json:
    reasons = {"hit": 3, "miss": 1, "spill": 0}
    summary = {"count": 3, "mean": 0.1, "p50": 0.1, "p95": 0.2}
    made = {
        "draining": False,
        "ready": True,
        "policy": "slack",
        "sync": {"up": None, "peers": 0, "lag_seconds": None},
        "findings": [],
        "workers": list(workers),
        "totals": {"reasons": reasons, "shed": 0, "aborts": 0, "retries": 0},
        "ttft": {"with_hit": summary, "without_hit": {**summary, "p50": 2.5, "p95": 3.0}},
        "prefill": {"saved_seconds": 1_234.5},
        "decisions": [],
    }
    return {**made, **changes}


def decision(request_id: str, at: float, **changes: Any) -> Json:
    made = {
        "request_id": request_id,
        "at": at,
        "reason": "hit",
        "worker": "905487f1",
        "matched_blocks": 6,
        "blocks": 7,
        "prompt_tokens": 12_000,
        "load": 2,
        "min_load": 0,
        "first_byte_seconds": 0.16,
        "outcome": "ok",
    }
    return {**made, **changes}


def shown(*views: View, width: int = 200, height: int | None = None) -> str:
    return "\n".join(lines(views, PLAIN, width, height))


# -- top -------------------------------------------------------------------------------------------------------


def test_a_fleet_at_a_glance() -> None:
    text = shown(View("http://a", state(worker()), rate=12.34))
    assert "http://a  ready  policy slack  alone  12.3 req/s" in text
    (row,) = [line for line in text.splitlines() if line.startswith("905487f1")]
    assert row.split() == [
        "905487f1",
        "ready",
        "1/8",
        "#.......",
        "70",
        "%",
        "65",
        "%",
        "1,234",
        "131.1k",
        "2",
        "h",
        "m",
    ]
    assert "4 decisions: hit 75 %, miss 25 %" in text
    assert "first byte with a hit 100 ms (p95 200 ms); first byte without 2.50 s (p95 3.00 s)" in text
    assert "1,234 s of prefill saved" in text


def test_between_its_parts_is_one_empty_line_and_none_elsewhere() -> None:
    found = [{"code": "working", "level": "note", "text": "Affinity works."}]
    for view in (
        View("http://a", trouble="no answer"),
        View("http://a", trouble="needs the admin key", workers=[worker()], requests=4.0),
        View("http://a", state(worker())),
        View("http://a", state(worker(), findings=found, decisions=[decision("r", 1.0)])),
    ):
        text = shown(view)
        assert text.strip("\n") == text
        assert "\n\n\n" not in text
    assert text.count("\n\n") == 4


@pytest.mark.parametrize("height", range(1, 24))
def test_no_more_lines_than_the_screen_has(height: int) -> None:
    many = [decision(f"r{number}", float(number)) for number in range(30)]
    found = lines([View("http://a", state(worker(), decisions=many))], PLAIN, 80, height)
    assert len(found) <= height
    assert sum(line.endswith(f"r{29 - number}") for number, line in enumerate(found[9:])) == max(0, height - 10)


@pytest.mark.parametrize(
    ("cache", "shown_as"),
    [
        ({"enabled": True, "capacity_tokens": 131_072, "learned_capacity_tokens": 131_072}, "131.1k"),
        ({"enabled": True, "capacity_tokens": 131_072, "learned_capacity_tokens": 98_000}, "~98.0k"),
        ({"enabled": None, "capacity_tokens": None, "learned_capacity_tokens": 98_000}, "~98.0k"),
        ({"enabled": None, "capacity_tokens": None, "learned_capacity_tokens": None}, "-"),
        ({"enabled": False, "capacity_tokens": 131_072, "learned_capacity_tokens": None}, "off"),
    ],
)
def test_what_a_worker_holds_is_marked_where_it_was_learned(cache: Json, shown_as: str) -> None:
    (line,) = [one for one in shown(View("http://a", state(worker(cache=cache)))).splitlines() if "905487f1" in one]
    assert line.split()[9] == shown_as


def test_replicas_that_hear_of_each_other_count_a_request_once_and_deaf_ones_add_up() -> None:
    heard = [worker(in_flight={"local": 2, "all": 5}), worker(in_flight={"local": 3, "all": 5})]
    assert "5/8" in shown(*[View(f"http://{n}", state(row)) for n, row in enumerate(heard)])
    deaf = [worker(in_flight={"local": 2, "all": 2}), worker(in_flight={"local": 3, "all": 3})]
    assert "5/8" in shown(*[View(f"http://{n}", state(row)) for n, row in enumerate(deaf)])


def test_replicas_that_differ_about_a_worker_are_both_heard() -> None:
    text = shown(View("http://a", state(worker())), View("http://b", state(worker(state="unready"))))
    assert "ready/unready" in text
    assert "140 %" not in text
    assert "8 decisions" in text


@pytest.mark.parametrize(
    ("sync", "words"),
    [
        ({"up": True, "peers": 1, "lag_seconds": 0.0004}, "news up, 1 other, 0.4 ms"),
        ({"up": True, "peers": 2, "lag_seconds": None}, "news up, 2 others"),
        ({"up": False, "peers": 0, "lag_seconds": None}, "news down, 0 others"),
    ],
)
def test_the_news_between_replicas_is_shown(sync: Json, words: str) -> None:
    assert words in shown(View("http://a", state(sync=sync)))


def test_findings_stand_once_with_their_weight_and_fit_the_width() -> None:
    finding = {"code": "x", "level": "problem", "text": "word " * 40, "change": None}
    text = shown(View("http://a", state(findings=[finding])), View("http://b", state(findings=[finding])), width=60)
    assert text.count("! word") == 1
    other = {**finding, "text": "words like those", "level": "note"}
    again = {**finding, "code": "y", "text": "something else"}
    text = shown(View("http://a", state(findings=[finding, again])), View("http://b", state(findings=[other])))
    assert "! something else" in text
    assert "words like those" not in text
    text = shown(View("http://a", state(findings=[finding])), width=60)
    assert max(len(line) for line in text.splitlines()) <= 60
    assert text.count("word") == 40


def test_the_last_decisions_of_all_replicas_come_newest_first() -> None:
    views = [
        View("http://a", state(decisions=[decision("first", 10.0), decision("third", 30.0, outcome=None)])),
        View("http://b", state(decisions=[decision("second", 20.0, first_byte_seconds=None)])),
    ]
    rows = [line for line in shown(*views).splitlines() if line.endswith(("first", "second", "third"))]
    assert [row.split()[-1] for row in rows] == ["third", "second", "first"]
    assert "running" in rows[0]
    assert "6/7  12,000" in rows[0]


@pytest.mark.parametrize("height", [1, 3, 8, 12, 40])
def test_nothing_is_larger_than_the_terminal(height: int) -> None:
    view = View("http://a", state(*[worker(f"{n:08x}") for n in range(9)], decisions=[decision("r", 1.0)] * 50))
    made = lines([view], Style(colour=True), 40, height)
    assert len(made) <= height
    assert max(map(length, made)) <= 40


def test_without_an_answer_the_reason_is_shown_and_the_fleet_where_it_is_open() -> None:
    gone = shown(View("http://a", trouble="no router there (Connection refused)"))
    assert "http://a  no router there (Connection refused)" in gone
    row = {**worker(), "models": [{"name": "m"}, {"name": "n"}]}
    del row["cached"]
    locked = shown(View("http://a", trouble="needs the admin key", workers=[row], requests=48.0, rate=2.0))
    assert "The fleet is shown, decisions (48 so far) are not.  2.0 req/s" in locked
    assert "m +1" in locked


def test_an_empty_fleet_and_an_idle_one_say_so() -> None:
    idle = state(totals={"reasons": {"hit": 0}, "shed": 2, "aborts": 0, "retries": 1})
    idle["ttft"] = {name: {"count": 0, "p50": None, "p95": None} for name in ("with_hit", "without_hit")}
    text = shown(View("http://a", idle))
    assert "No workers." in text
    assert "No decisions yet." in text
    assert "2 shed, 1 retries" in text


def test_what_others_have_named_can_not_steer_the_terminal() -> None:
    hostile = "\x1b[2J\x1b]0;owned\x07name"
    row = worker(models=[hostile], state="\x1b[31mready")
    found = decision(hostile, 1.0, reason=hostile)
    text = shown(
        View("http://a", state(row, decisions=[found], findings=[{"code": "x", "text": hostile, "level": "note"}]))
    )
    assert "\x1b" not in text
    assert "\x07" not in text
    assert plain(hostile) == "?[2J?]0;owned?name"


def test_colours_take_no_room() -> None:
    style = Style(colour=True)
    painted = style.paint("abcdef", "red") + "ghi"
    assert length(painted) == 9
    assert cut(painted, 4) == "\x1b[31mabcd\x1b[0m"
    assert cut(painted, 9) == painted
    assert Style(colour=False).paint("a", "red") == "a"


# -- explain ---------------------------------------------------------------------------------------------------


def terms(name: str, **changes: Any) -> Json:
    row = {
        "worker": name,
        "state": "ready",
        "draining": False,
        "removed_by": None,
        "last_resort": False,
        "window": 32_768,
        "matched_blocks": 0,
        "resumable_tokens": 0,
        "withheld": None,
        "load": 0,
        "slots": 8,
        "within_slack": True,
        "work": None,
        "rendezvous_rank": None,
    }
    return {**row, **changes}


def said(*rows: Json, **changes: Any) -> Json:
    prompt = {"bytes": 5_120, "blocks": 10, "tokens": 1_280, "tokens_exact": False, "salted": False}
    made = {
        "endpoint": "/v1/chat/completions",
        "model": "m",
        "policy": "slack",
        "reuse": "on",
        "prompt": {**prompt, "continues_response": False},
        "chosen": "aaaaaaaa",
        "reason": "hit",
        "load": 1,
        "min_load": 0,
        "slack": 1,
        "would_wait": False,
        "workers": list(rows),
    }
    return {**made, **changes}


def words(*rows: Json, **changes: Any) -> str:
    return "\n".join(explained(said(*rows, **changes), PLAIN))


def test_a_hit_says_what_it_saves_and_what_it_may_cost() -> None:
    text = words(
        terms("aaaaaaaa", matched_blocks=9, resumable_tokens=1_152, load=1),
        terms("bbbbbbbb", matched_blocks=4, resumable_tokens=512),
        terms("cccccccc", matched_blocks=10, resumable_tokens=1_264, load=3, within_slack=False),
    )
    assert "a prompt of 5,120 bytes, 10 blocks, about 1,280 tokens." in text
    assert "aaaaaaaa would be chosen: hit." in text
    assert "It can resume 1,152 of 1,280 tokens (9 blocks match)." in text
    assert "That is 640 more than bbbbbbbb, the next within reach." in text
    assert "It has 1 in flight and the freest candidate 0; a prompt of this size may find 1 more." in text
    assert "cccccccc could resume 1,264, but has 3 in flight, and the limit is 1." in text


def test_equal_matches_are_told_apart_by_load_or_by_order() -> None:
    own = terms("aaaaaaaa", matched_blocks=9, resumable_tokens=1_152)
    other = terms("bbbbbbbb", matched_blocks=9, resumable_tokens=1_152)
    assert "bbbbbbbb can resume as much; it comes first in the order" in words(own, other)
    assert "bbbbbbbb can resume as much; it carries less." in words(own, {**other, "load": 1})
    assert "Nobody else within reach can resume any of them." in words(own, terms("bbbbbbbb"))


@pytest.mark.parametrize(
    ("load", "others", "sentence"),
    [
        (0, [2], "It has 0 in flight, the next 2."),
        (1, [1, 1], "as few as 2 others and comes first in the order that all replicas share"),
        (2, [1], "It has 2 in flight and the freest 1; this policy does not look for the freest alone."),
    ],
)
@pytest.mark.parametrize("reason", ["miss", "short", "bypass", "cache_disabled", "below_block_floor"])
def test_where_load_decides_it_says_why_and_how(reason: str, load: int, others: list[int], sentence: str) -> None:
    rows = [terms("aaaaaaaa", load=load, rendezvous_rank=1), *[terms(f"b{n}", load=n) for n in others]]
    text = words(*rows, reason=reason)
    assert "load decides" in text
    assert sentence in text


def test_work_is_told_in_tokens() -> None:
    rows = [
        terms("aaaaaaaa", resumable_tokens=1_152, matched_blocks=9, work={"score": 1_000.0}, within_slack=None),
        terms("bbbbbbbb", work={"score": 4_500.0}, within_slack=None),
    ]
    text = words(*rows, policy="work")
    assert "1,000 tokens of work against 4,500 on bbbbbbbb, 3,500 fewer." in text
    assert "It can resume 1,152 tokens of the prompt (9 blocks)." in text
    rows[1]["work"] = {"score": 1_000.2}
    assert "equally little to compute" in words(*rows, policy="work")


@pytest.mark.parametrize("filter", sorted(REMOVED))
def test_whoever_was_not_asked_has_a_reason(filter: str) -> None:
    text = words(terms("aaaaaaaa"), terms("bbbbbbbb", removed_by=filter, draining=filter == "draining"))
    assert REMOVED[filter] in text
    assert "It is the only candidate." in text


def test_what_is_withheld_and_who_is_asked_for_want_of_better_is_said() -> None:
    text = words(
        terms("aaaaaaaa", withheld="cache_disabled", last_resort=True), terms("bbbbbbbb", withheld="below_block_floor")
    )
    for reason in WITHHELD.values():
        assert reason in text
    assert "asked although it is not well" in text


def test_a_wait_and_a_reuse_that_does_not_steer_are_said() -> None:
    text = words(terms("aaaaaaaa"), would_wait=True, reuse="observe")
    assert "would wait" in text
    assert "Reuse is set to observe" in text


def test_a_refusal_is_said_and_all_workers_with_it() -> None:
    refusal = {"status": 503, "code": "no_worker_available", "message": "No worker can serve."}
    rows = [terms("aaaaaaaa", removed_by="not_ready", state="unready")]
    text = "\n".join(explained({**said(*rows), "chosen": None, "refusal": refusal}, PLAIN))
    assert "It would be refused: 503 no_worker_available: No worker can serve." in text
    assert "No worker passed the filters." in text


# -- asking ----------------------------------------------------------------------------------------------------


def replica(answer: httpx.Response | Exception, key: str | None = None) -> Replica:
    def handle(request: httpx.Request) -> httpx.Response:
        if isinstance(answer, Exception):
            raise answer
        return answer

    return Replica("http://router:8080/", key, transport=httpx.MockTransport(handle))


def refusal(status: int, code: str) -> httpx.Response:
    return httpx.Response(status, json={"error": {"code": code, "message": "because"}})


@pytest.mark.parametrize(
    ("answer", "key", "message", "locked"),
    [
        (httpx.ConnectError("[Errno 111] Connection refused"), None, r"no router there \(Connection refused\)", False),
        (httpx.ReadTimeout("slow"), None, "no answer within 5 s", False),
        (httpx.RemoteProtocolError("odd bytes"), None, "odd bytes", False),
        (httpx.Response(200, text="<html>"), None, "no prefix-router", False),
        (httpx.Response(200, json=[]), None, "no prefix-router", False),
        (httpx.Response(404, json={"detail": "Not Found"}), None, "of this version", False),
        (refusal(404, "unknown_route"), None, "of this version", False),
        (refusal(401, "invalid_api_key"), None, f"needs the admin key: --admin-key, or {KEY_VARIABLE}", True),
        (refusal(401, "invalid_api_key"), "k", "the admin key is not the right one", True),
    ],
)
def test_trouble_is_told_in_words(
    answer: httpx.Response | Exception, key: str | None, message: str, locked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    with pytest.raises(Trouble, match=message) as trouble:
        replica(answer, key).get("/router/state")
    assert trouble.value.locked is locked
    assert str(trouble.value).startswith("http://router:8080: ")


def test_a_path_behind_the_address_is_asked_about() -> None:
    transport = httpx.MockTransport(lambda request: refusal(404, "unknown_route"))
    with pytest.raises(Trouble, match="is it there without /v1\\?"):
        Replica("http://router:8080/v1", transport=transport).get("/router/state")


def test_the_routers_own_refusal_is_passed_on() -> None:
    with pytest.raises(Refused, match="404 model_not_found: because"):
        replica(refusal(404, "model_not_found")).post("/router/explain", b"{}", {})


@pytest.mark.parametrize("url", ["router:8080", "ftp://router", "http://[::1", "http://router:port"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(Trouble):
        Replica(url)


def test_the_key_comes_from_the_flag_or_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str | None] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers.get("authorization"))
        return httpx.Response(200, json={})

    for key, variable in ((None, ""), (None, "from-variable"), ("from-flag", "from-variable")):
        monkeypatch.setenv(KEY_VARIABLE, variable)
        Replica("http://router", key, transport=httpx.MockTransport(handle)).get("/router/state")
    assert seen == [None, "Bearer from-variable", "Bearer from-flag"]
