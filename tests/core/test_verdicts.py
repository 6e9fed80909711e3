"""What follows from answers and probes: ledgers, metrics, and a map that learns."""

from __future__ import annotations

from typing import Any

import pytest

from router.affinity import AffinityMap
from router.cachemodel import CacheProfile, Rule
from router.calibration import TokenRatios, Usage
from router.calibration.verdict import EXPIRY_SECONDS
from router.dataplane.verdicts import Verdicts
from router.decisions import DecisionRecord
from router.metrics import Metrics
from router.prompt import Form, Prompt
from router.settings import Settings
from router.workers.health import Event
from router.workers.registry import Facts, Model, Registry, Worker
from router.workers.selection import Selector

# 4 bytes a token, as is assumed before anything was reported.
SIZE = 12_000
TOKENS = SIZE // 4


def text(number: int, size: int = SIZE) -> bytes:
    return (f"conversation {number} " * (size // 14 + 1)).encode()[:size]


class Bench:
    """One worker behind a selector and its verdicts; the clock is turned by hand."""

    def __init__(self, *, correct: bool = True, profile: CacheProfile | None = None) -> None:
        self.now = 1_000.0
        self.wall = 5_000_000.0
        self.registry = Registry()
        self.index = AffinityMap(100_000, 5_400.0, 10.0)
        self.registry.hooks.epoch.append(lambda worker: _settle(self.index, worker))
        self.ratios = TokenRatios()
        self.metrics = Metrics()
        self.selector = Selector(Settings(), self.registry, self.index, self.ratios, lambda: 0.5)
        self.verdicts = Verdicts(
            self.registry,
            self.index,
            self.ratios,
            self.metrics,
            lambda: self.now,
            lambda: self.wall,
            correct=correct,
        )
        self.profile = profile or CacheProfile(capacity_tokens=1_000_000)
        self.worker = self.registry.add("http://10.0.0.1:8000", slots=8)
        self.hits = 0.0
        self.registry.set_epoch(self.worker, 1_000_000.0)
        self.probe()
        self.registry.feed(self.worker, Event.UP)

    def probe(self) -> None:
        """The worker says what it is, and how many tokens it has found in its cache so far."""
        self.now += 5.0
        self.registry.learn(
            self.worker,
            Facts(models={"m": Model("m", b"{}")}, profile=self.profile, cache_queries=self.hits, cache_hits=self.hits),
        )

    def serve(self, prompt: bytes, cached: int | None, *, told: bool = True, **fields: Any) -> DecisionRecord:
        """One whole answer that reports so many cached tokens (None: it does not say)."""
        self.now += 1.0
        asked = Prompt(Form.CHAT, "m", prefix=prompt, size=len(prompt), **fields)
        placement = self.selector.place(self.selector.inquire(asked), self.now)
        assert placement is not None
        decision = placement.decision
        record = DecisionRecord(
            "id", self.now, "/v1/chat/completions", "m", self.worker.id, decision.reason.value, decision.match.blocks,
            decision.blocks, decision.match.resumable, placement.inquiry.tokens, 0, 0, 0, None, 1,
        )  # fmt: skip
        self.now += 0.5
        placement.own(self.now)
        self.verdicts.join(record, placement, Usage(len(prompt) // 4, cached) if told else None)
        placement.release()
        return record

    def matched(self, prompt: bytes) -> int:
        """The tokens that the worker is believed to hold of a prompt."""
        inquiry = self.selector.inquire(Prompt(Form.CHAT, "m", prefix=prompt, size=len(prompt)))
        match = self.selector.matches(inquiry, self.now).get(self.worker.id)
        return match.resumable if match else 0

    def fallbacks(self) -> dict[str, float]:
        return {labels[2]: count for labels, count in self.metrics.fallbacks.values.items()}


def _settle(index: AffinityMap, worker: Worker) -> None:
    index.set_epoch(worker.id, worker.epoch)


def test_an_answer_fills_record_metrics_and_ledger() -> None:
    bench = Bench()
    assert bench.serve(text(1), 0).verdict == "confirmed"
    record = bench.serve(text(1), TOKENS - 1)
    assert record.verdict == "confirmed"
    assert record.predicted_cached_tokens is not None
    labels = ("m", bench.worker.id)
    assert bench.metrics.predicted.values[labels] == record.predicted_cached_tokens
    assert bench.metrics.reported.values[labels] == TOKENS - 1
    assert bench.metrics.confirmed.values[labels] == record.predicted_cached_tokens
    ledger = bench.verdicts.ledger_of(bench.worker)
    assert ledger.precision == 1.0
    assert ledger.recall == pytest.approx(record.predicted_cached_tokens / (TOKENS - 1))
    page = bench.metrics.render().decode()
    assert f'router_hit_precision{{worker="{bench.worker.id}"}} 1.0' in page
    assert f'router_cache_capacity_tokens{{worker="{bench.worker.id}"}} 1e+06' in page
    assert f'router_calibration_verdicts_total{{verdict="confirmed",worker="{bench.worker.id}"}} 2.0' in page


def test_answers_that_say_nothing_are_unknown_and_teach_what_they_can() -> None:
    bench = Bench()
    silent = bench.serve(text(1), None)
    assert (silent.verdict, silent.reported_prompt_tokens) == ("unknown", TOKENS)
    assert bench.serve(text(1), None, told=False).verdict is None
    assert bench.serve(text(1), 0, incomparable=True).verdict == "unknown"
    assert not bench.fallbacks()
    assert bench.metrics.predicted.total() == 0
    assert bench.metrics.verdicts.values == {(bench.worker.id, "unknown"): 3}


def test_three_lost_conversations_empty_the_cache_but_for_what_came_since() -> None:
    bench = Bench()
    for number in range(8):
        bench.serve(text(number), 0)
        bench.serve(text(number), TOKENS)
    before = bench.worker.epoch
    for number in range(3):
        assert bench.serve(text(number), 0).verdict == "fell_short"
    assert bench.fallbacks() == {"not_resident": 3}
    assert bench.worker.epoch == bench.wall > before
    assert [bench.matched(text(number)) > 0 for number in range(8)] == [True] * 3 + [False] * 5
    assert bench.metrics.emptied.total() == 1
    # A request that was under way meanwhile says nothing new.
    assert bench.serve(text(1), TOKENS).verdict == "confirmed"
    assert bench.serve(text(7), 0).verdict == "confirmed"


def test_what_falls_short_in_the_new_life_is_not_put_down_to_the_end_of_the_old_one() -> None:
    bench = Bench()
    for number in range(8):
        bench.serve(text(number), 0)
    for number in range(5):
        bench.serve(text(number), TOKENS - 1)
    for number in range(3):
        bench.serve(text(number), 0)
    assert bench.verdicts.emptied_at(bench.worker) == bench.worker.epoch
    before = bench.fallbacks()
    bench.serve(text(20), 0)
    bench.now += EXPIRY_SECONDS + 1
    bench.serve(text(20), 0)
    gained = {cause for cause, count in bench.fallbacks().items() if count > before.get(cause, 0)}
    assert gained == {"expired"}


@pytest.mark.parametrize("known", [0, 4_000])
def test_what_the_worker_had_beyond_the_map_lets_its_capacity_grow_by_so_much(known: int) -> None:
    bench = Bench(profile=CacheProfile(capacity_tokens=2 * TOKENS))
    capacity = bench.verdicts.ledger_of(bench.worker).capacity
    for number in range(1, 4):
        bench.serve(text(number), 0)
    if known:
        bench.serve(text(0)[:known], 0)
    before = capacity.tokens
    assert before is not None
    record = bench.serve(text(0), TOKENS - 300)
    predicted = record.predicted_cached_tokens
    assert predicted is not None
    assert (record.verdict, predicted > 0) == ("better", known > 0)
    assert capacity.tokens == int(before * (1 + 0.2 * (TOKENS - 300 - predicted) / TOKENS)) + 1


def test_one_that_only_counts_changes_nothing() -> None:
    bench = Bench(correct=False)
    for number in range(8):
        bench.serve(text(number), 0)
        bench.serve(text(number), TOKENS)
    before = bench.worker.epoch
    for number in range(6):
        bench.serve(text(number), 0)
    assert bench.fallbacks() == {"not_resident": 6}
    assert bench.worker.epoch == before
    assert bench.matched(text(7)) > 0


def test_a_cache_that_seems_emptied_at_once_again_is_small() -> None:
    bench = Bench()
    for turn in range(2):
        for number in range(8):
            bench.serve(text(number), 0 if not turn else TOKENS if number < 3 else 0)
            bench.serve(text(number), TOKENS)
        for number in range(3):
            bench.serve(text(number), 0)
    assert bench.metrics.emptied.total() == 1
    capacity = bench.verdicts.ledger_of(bench.worker).capacity.tokens
    # What is remembered of it, less a fifth of what was missing.
    assert capacity is not None
    assert capacity < 30_000


def test_what_is_evicted_lowers_the_capacity_and_the_map_keeps_to_it() -> None:
    bench = Bench(profile=CacheProfile(capacity_tokens=40_000))
    bench.serve(text(0), 0)
    for number in range(1, 10):
        bench.serve(text(number), 0)
    # 27,000 tokens later.
    assert bench.serve(text(0), 0).verdict == "fell_short"
    assert bench.fallbacks() == {"evicted": 1}
    capacity = bench.verdicts.ledger_of(bench.worker).capacity.tokens
    assert capacity is not None
    assert 20_000 < capacity < 30_000 * 0.85
    assert bench.index.bytes_of(bench.worker.id) <= capacity * 4
    assert bench.matched(text(1)) < TOKENS - 500
    assert bench.matched(text(9)) > TOKENS - 500


def test_a_capacity_that_the_worker_declares_holds_from_the_first_probe() -> None:
    bench = Bench(profile=CacheProfile(capacity_tokens=10_000))
    for number in range(8):
        bench.serve(text(number), 0)
    assert bench.index.bytes_of(bench.worker.id) <= 40_000
    assert bench.matched(text(0)) == 0


@pytest.mark.parametrize(("rule", "forgotten"), [(Rule.BLOCKS, True), (Rule.CHECKPOINTS, False)])
def test_other_branches_behind_the_missing_part_go_with_it(rule: Rule, *, forgotten: bool) -> None:
    bench = Bench(profile=CacheProfile(rule=rule, retention=0, capacity_tokens=1_000_000))
    long, branch = text(1, 24_000), text(1) + text(2)
    bench.serve(long, 0)
    bench.serve(branch, 0)
    assert bench.fallbacks() == {"not_resident": 1}
    assert (bench.matched(long) < 3_100) == forgotten
    assert bench.matched(branch) > 5_800


def test_counters_that_stand_still_refute_silent_answers() -> None:
    bench = Bench()
    for number in range(4):
        bench.serve(text(number), None)
        bench.serve(text(number), None)
        bench.hits += TOKENS
    bench.probe()
    bench.probe()
    assert bench.metrics.counter_checks.values == {(bench.worker.id, "consistent"): 1}
    for number in range(3):
        bench.serve(text(number), None)
    bench.probe()
    assert not bench.fallbacks()
    bench.probe()
    assert bench.fallbacks() == {"not_resident": 3}
    assert bench.metrics.counter_checks.values[bench.worker.id, "contradicted"] == 1
    # All of them at once: the cache is empty but for what was computed since.
    assert bench.metrics.emptied.total() == 1
    assert [bench.matched(text(number)) > 0 for number in range(4)] == [True] * 3 + [False]
    precision = bench.verdicts.ledger_of(bench.worker).precision
    assert precision == 0.0


def test_a_worker_that_is_removed_takes_its_account_along() -> None:
    bench = Bench()
    bench.serve(text(1), 0)
    bench.serve(text(1), TOKENS)
    bench.registry.remove(bench.worker)
    assert "router_hit_precision{" not in bench.metrics.render().decode()


OPEN = CacheProfile(enabled=True, block_size=1_600, rule=Rule.OPEN_BLOCK)


def test_an_answer_that_resumed_the_last_block_shows_that_it_is_kept() -> None:
    bench = Bench(profile=OPEN)
    prompt = text(1, 8_144)  # 2,036 tokens: one whole block
    assert [bench.serve(prompt, cached).predicted_cached_tokens for cached in (0, 0, 1_600)] == [0, 0, 0]
    bench.probe()  # the labels say the same as ever
    found = bench.serve(prompt, 1_600)
    assert (found.predicted_cached_tokens, found.verdict) == (1_600, "confirmed")
    # Another life may be started with other arguments.
    bench.registry.set_epoch(bench.worker, 2_000_000.0)
    bench.probe()
    assert [bench.serve(prompt, 0).predicted_cached_tokens for _ in range(2)] == [0, 0]


def test_what_was_not_to_be_corrected_keeps_its_last_block_open() -> None:
    bench = Bench(profile=OPEN, correct=False)
    prompt = text(1, 8_144)
    assert [bench.serve(prompt, cached).predicted_cached_tokens for cached in (0, 1_600, 1_600)] == [0, 0, 0]
