"""Every input of the corpus, and some hundred mutations of it, against every reader of bytes from elsewhere.

The long run is `scripts/fuzz`.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.dataplane.sse import MOST_TOKENS, Tap
from router.errors import SettingsError
from router.settings.loading import load
from tests.fuzzing.__main__ import fault, fuzz, main
from tests.fuzzing.framing import hold_conversation
from tests.fuzzing.mutate import MAX_BYTES, mutated, pieces
from tests.fuzzing.targets import CORPUS, TARGETS, bodies, corpus

CASES = [(name, case) for name in TARGETS for case in corpus(name)]
COUNTS = {"settings": 60, "requests": 300}


def test_every_folder_has_a_target() -> None:
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS)


@pytest.mark.parametrize(("name", "case"), CASES, ids=lambda value: str(value))
def test_the_corpus(name: str, case: str) -> None:
    TARGETS[name](random.Random(1), corpus(name)[case])


@pytest.mark.parametrize("name", TARGETS)
def test_mutations(name: str) -> None:
    rng = random.Random(7)
    seeds = list(corpus(name).values())
    for _ in range(COUNTS.get(name, 600)):
        data, own = mutated(rng, seeds), rng.getrandbits(32)
        assert fault(TARGETS[name], own, data) is None, data


@pytest.mark.parametrize("name", ["bodies", "streams", "sync", "answers"])
def test_anything(name: str) -> None:
    @settings(max_examples=100)
    @given(st.binary(max_size=300), st.integers(0, 1 << 30))
    def check(data: bytes, seed: int) -> None:
        TARGETS[name](random.Random(seed), data)

    check()


@given(st.integers(), st.binary(max_size=100))
def test_pieces_are_the_whole(seed: int, data: bytes) -> None:
    cut = pieces(random.Random(seed), data)
    assert b"".join(cut) == data
    assert all(cut)


def test_mutations_are_bounded_and_come_from_the_seed() -> None:
    seeds = list(corpus("bodies").values())
    first, second = ([mutated(random.Random(n), seeds) for n in range(200)] for _ in range(2))
    assert first == second
    assert len(set(first)) > 150
    assert max(map(len, first)) <= MAX_BYTES


def test_a_reader_that_takes_another_model_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.fuzzing import targets

    honest = vars(targets)["read_prompt"]

    def first_model(form, body, content_type=b""):  # type: ignore[no-untyped-def]
        prompt = honest(form, body, content_type)
        names = re.findall(rb'"model":"([a-z]*)"', body)
        prompt.model = names[0].decode() if names else prompt.model
        return prompt

    monkeypatch.setattr(targets, "read_prompt", first_model)
    assert "another model" in (fault(bodies, 1, corpus("bodies")["chat-twice.json"]) or "")


def test_findings_are_kept_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fragile(rng: random.Random, data: bytes) -> None:
        raise KeyError(len(data) % 2)

    monkeypatch.setitem(TARGETS, "sync", fragile)
    tried, _, findings = fuzz("sync", 0.05, 1, tmp_path)
    assert list(findings.values()) == [tried]
    assert list(tmp_path.iterdir())
    assert main(["sync", "--minutes", "0.001", "--keep", str(tmp_path)]) == 1


def test_requests_are_seen_by_the_conversation() -> None:
    body = b'{"model":"m"}'
    assert hold_conversation([corpus("requests")["pipelined.http"]]) == [(b"POST", "/v1/chat/completions", body)] * 3
    assert hold_conversation([corpus("requests")["both-lengths.http"]]) == []


# -- what was found ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["a: 2024-13-45", "a: !!int seven", "a: !!bool maybe", "a: !!timestamp now", "a: !!float x"]
)
def test_values_that_do_not_fit_their_tag_are_named_by_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(f"workers: [http://127.0.0.1:8001]\n{text}\n")
    with pytest.raises(SettingsError, match=r"line 2, column 4: not a value of its kind"):
        load(path)


@pytest.mark.parametrize(
    "text",
    [
        "auth: {admin_key: !canary-key-1}",
        "auth: {admin_key: *canary-key-1 }",
        "auth: {admin_key: !canary-key-1!x y}",
        "auth: [&canary-key-1 1, &canary-key-1 2]",
        "workers: ['http://u:canary-key-1/x@host']",
        "workers: [{'http://u:canary-key-1@host': x}]",
        "workers: ['http://[canary-key-1]:8001']",
        "sync: {redis_url: 'redis://:[canary-key-1]@host'}",
    ],
)
def test_what_may_be_a_password_is_not_shown(tmp_path: Path, text: str) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError, match="line 1") as refusal:
        load(path)
    assert "canary" not in str(refusal.value)


@pytest.mark.parametrize("count", ["9" * 400, str(MOST_TOKENS + 1), "-1", "1.5", "true"])
def test_counts_that_are_none_are_unknown(count: str) -> None:
    tap = Tap(events=False)
    tap.feed(b'{"usage":{"prompt_tokens":5,"prompt_tokens_details":{"cached_tokens":%b}}}' % count.encode())
    usage = tap.usage()
    assert usage is not None
    assert (usage.prompt_tokens, usage.cached_tokens) == (5, None)


def test_the_last_usage_is_found_behind_little_that_looks_like_it_and_not_behind_a_flood() -> None:
    found, lost = (Tap(events=False) for _ in range(2))
    found.feed(b'{"usage":{"prompt_tokens":5}' + b'"usage":[' * 10)
    lost.feed(b'{"usage":{"prompt_tokens":5}' + b'"usage":[' * 1_000)
    assert found.usage() is not None
    assert lost.usage() is None
