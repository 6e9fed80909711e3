from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from router.cachemodel import CacheProfile, profile_from_labels
from router.workers.discovery import MAX_BYTES, MAX_MODELS, MetricsFacts, all_hits, parse_metrics, parse_models
from router.workers.registry import Model

BASE = b'{"id": "llama",  "object":"model","max_model_len":4096,"root":"/m", "parent":null, "permission":[{"x": 1.50}]}'
ALIAS = b'{"id":"chat","object":"model","max_model_len":4096,"parent":null}'
ADAPTER = b'{"id":"sql","object":"model","max_model_len":null,"root":"/lora","parent":"llama"}'


def listing(*cards: bytes) -> bytes:
    return b'{"object":"list","data":[' + b" , ".join(cards) + b"]}"


def test_cards_are_kept_byte_for_byte_and_adapters_have_the_window_of_their_base() -> None:
    models = parse_models(listing(ADAPTER, BASE, ALIAS))
    assert list(models) == ["sql", "llama", "chat"]
    assert models["llama"] == Model("llama", BASE, 4096, None)
    assert models["chat"] == Model("chat", ALIAS, 4096, None)
    assert models["sql"] == Model("sql", ADAPTER, 4096, "llama")


def test_an_adapter_of_an_unlisted_base_has_no_known_window() -> None:
    assert parse_models(listing(ADAPTER))["sql"].window is None


def test_a_model_that_names_itself_as_parent_is_a_base() -> None:
    assert parse_models(listing(b'{"id":"a","parent":"a"}'))["a"].parent is None


@pytest.mark.parametrize(
    ("value", "window"),
    [
        ("8192", 8192),
        ("8192.0", 8192),
        ("null", None),
        ("0", None),
        ("-1", None),
        ("true", None),
        ('"8k"', None),
        ("1e300", None),
        ("123456789012345678901234567890", None),
        ("[1]", None),
    ],
)
def test_windows(value: str, window: int | None) -> None:
    assert parse_models(listing(b'{"id":"a","max_model_len":%s}' % value.encode()))["a"].window == window


def test_a_llama_cpp_card_has_no_window() -> None:
    card = b'{"id":"tiny","object":"model","owned_by":"me","permissions":[]}'
    assert parse_models(listing(card)) == {"tiny": Model("tiny", card)}


def test_one_bad_card_does_not_hide_the_others() -> None:
    bad = [b"3", b"null", b"[]", b'{"id":5}', b"{}", b'{"id":""}', b'{"id":"\xff"}', b'{"id":"a\\r\\nb"}']
    bad += [b'{"id":"%s"}' % (b"x" * 300), b'{"id":"deep","x":' + b"[" * 500 + b"]" * 500 + b"}"]
    assert set(parse_models(listing(*bad, BASE))) - {"deep"} == {"llama"}


def test_the_first_of_two_cards_of_one_name_counts() -> None:
    assert parse_models(listing(BASE, b'{"id":"llama","max_model_len":1}'))["llama"].window == 4096


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b'{"data":null}',
        b'{"data":{}}',
        b'{"data":[]}',
        b"<html>",
        b"\xff\xfe",
        b'{"data":[',
    ],
)
def test_lists_that_cannot_be_read_are_empty(body: bytes) -> None:
    assert parse_models(body) == {}


def test_lists_that_are_too_deep_or_too_large_are_empty() -> None:
    assert parse_models(b'{"data":[' + b"[" * 200_000) == {}
    assert parse_models(listing(BASE + b" " * MAX_BYTES)) == {}


def test_the_number_of_models_is_bounded() -> None:
    assert len(parse_models(listing(*(b'{"id":"m%d"}' % n for n in range(MAX_MODELS + 5))))) == MAX_MODELS


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader_of_models(body: bytes) -> None:
    parse_models(body)
    parse_models(listing(body))


names = st.text(min_size=1, max_size=20)


@given(st.lists(st.tuples(names, st.none() | st.integers(1, 1 << 40), st.none() | names), max_size=6))
def test_models_are_read_as_a_json_parser_reads_them(entries: list[tuple[str, int | None, str | None]]) -> None:
    cards = [{"id": name, "max_model_len": window, "parent": parent} for name, window, parent in entries]
    models = parse_models(json.dumps({"data": cards}).encode())
    assert set(models) == {name for name, _, _ in entries if name.isprintable()}
    for model in models.values():
        card = next(card for card in cards if card["id"] == model.name)
        assert json.loads(model.card) == card
        assert model.window == card["max_model_len"] or model.parent == card["parent"]


# -- metrics ---------------------------------------------------------------------------------------------------


CACHE = {"block_size": "16", "num_gpu_blocks": "27000", "enable_prefix_caching": "True", "sliding_window": "None"}


def vllm_page(engines: Sequence[tuple[float, float, float]], labels: Mapping[str, str], model: str = "m") -> bytes:
    """A page as a vLLM worker writes it, from the library that it uses."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    both = ["model_name", "engine"]
    running = Gauge("vllm:num_requests_running", "Requests\nin \\ batches", both, registry=registry)
    waiting = Gauge("vllm:num_requests_waiting", "vllm:num_requests_waiting", both, registry=registry)
    reasons = Gauge("vllm:num_requests_waiting_by_reason", "By reason", [*both, "reason"], registry=registry)
    sleep = Gauge("vllm:engine_sleep_state", "Sleep", [*both, "sleep_state"], registry=registry)
    queries = Counter("vllm:prefix_cache_queries", "Tokens", both, registry=registry)
    hits = Counter("vllm:prefix_cache_hits", "Tokens", both, registry=registry)
    prompt = Counter("vllm:prompt_tokens", "Tokens", both, registry=registry)
    info = Gauge("vllm:cache_config_info", "Cache", [*labels, "engine"], registry=registry)
    ttft = Histogram("vllm:time_to_first_token_seconds", "TTFT", both, registry=registry)
    for engine, (a, b, c) in enumerate(engines):
        where = (model, str(engine))
        running.labels(*where).set(a)
        waiting.labels(*where).set(b)
        reasons.labels(*where, "capacity").set(99)
        for state in ("awake", "weights_offloaded", "discard_all"):
            sleep.labels(*where, state).set(state == "awake")
        queries.labels(*where).inc(c)
        hits.labels(*where).inc(c / 2)
        prompt.labels(*where).inc(c + 1)
        info.labels(*labels.values(), str(engine)).set(1)
        ttft.labels(*where).observe(0.5)
    return generate_latest(registry)


def reference(page: bytes) -> MetricsFacts:
    """The same facts by way of the whole parser."""
    samples: dict[str, list[Any]] = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append(sample)

    def total(name: str) -> float | None:
        values = [sample.value for sample in samples.get(name, [])]
        return math.fsum(values) if values and all(0 <= value < math.inf for value in values) else None

    def count(name: str) -> int | None:
        value = total(name)
        return None if value is None else int(value)

    info = samples.get("vllm:cache_config_info")
    return MetricsFacts(
        started=total("process_start_time_seconds"),
        cache_labels=info[0].labels if info else None,
        running=count("vllm:num_requests_running"),
        waiting=count("vllm:num_requests_waiting"),
        cache_queries=total("vllm:prefix_cache_queries_total"),
        cache_hits=total("vllm:prefix_cache_hits_total"),
        prompt_tokens=total("vllm:prompt_tokens_total"),
    )


def test_a_page_of_two_engines_is_read_as_the_full_parser_reads_it() -> None:
    page = vllm_page([(3, 4, 1000), (5, 0, 24)], CACHE)
    facts = parse_metrics(page)
    assert facts == reference(page) == parse_metrics(page.decode())
    assert (facts.running, facts.waiting, facts.cache_queries, facts.cache_hits) == (8, 4, 1024, 512)
    assert facts.prompt_tokens == 1026
    assert facts.started is not None
    assert facts.started > 1e9
    assert facts.cache_labels == {**CACHE, "engine": "0"}


# Whole numbers, so that no order of adding can make a difference.
counts = st.integers(0, 1 << 36).map(float)
label_names = st.sampled_from(["block_size", "num_gpu_blocks", "a", "z9", "sliding_window"])
label_values = st.text(st.sampled_from('ab"\\}{,= \t#n\n\r\u00e9\u2028') | st.characters(codec="utf-8"), max_size=12)


@settings(max_examples=50)
@given(
    st.lists(st.tuples(counts, counts, counts), max_size=3),
    st.dictionaries(label_names, label_values, max_size=4),
    label_values,
)
def test_any_page_the_library_writes_is_read_as_the_full_parser_reads_it(
    engines: list[tuple[float, float, float]], labels: dict[str, str], model: str
) -> None:
    page = vllm_page(engines, labels, model)
    assert parse_metrics(page) == reference(page)


NAME = b"vllm:num_requests_running"


@pytest.mark.parametrize(
    ("page", "running"),
    [
        (NAME + b" 3", 3),
        (NAME + b" 3\n", 3),
        (b"  " + NAME + b"\t 3 \r\n", 3),
        (NAME + b"{} 3", 3),
        (NAME + b' {engine="0",} 3', 3),
        (NAME + b'{engine="0"}3', 3),
        (NAME + b'{ engine = "0" } 3 1700000000000', 3),
        (NAME + b'{a="} 9",b="\\"} 8"} 3', 3),
        (NAME + b" 3e0\n" + NAME + b'{engine="1"} 4', 7),
    ],
)
def test_odd_but_right_samples(page: bytes, running: int) -> None:
    assert parse_metrics(page).running == running == reference(page).running


@pytest.mark.parametrize(
    "rest",
    ["", " ", " NaN", " +Inf", " -1", " 1_0", " x", "3", '{engine="0" 3', '{engine="0} 3', "{} {", "{}", "_x 3", " \0"],
)
def test_what_is_no_count_is_unknown(rest: str) -> None:
    sample = NAME + rest.encode()
    assert parse_metrics(sample).running is None
    if rest.strip() not in ("3", "_x 3"):  # which are other metrics
        assert parse_metrics(NAME + b' {engine="0"} 1\n' + sample).running is None


@pytest.mark.parametrize("before", ["x", "# HELP ", "x ", '"'])
def test_a_name_inside_a_line_is_no_sample(before: str) -> None:
    assert parse_metrics(before.encode() + NAME + b" 3\n" + NAME + b" 4").running == 4


def test_a_page_without_bounds_is_unknown() -> None:
    assert parse_metrics((NAME + b" 1\n") * 4_096).running == 4_096
    assert parse_metrics((NAME + b" 1\n") * 4_097).running is None
    assert parse_metrics(NAME + b' {a="' + b"x" * 70_000 + b'"} 3').running is None
    assert parse_metrics(NAME + b" 1\n" + b" " * MAX_BYTES) == MetricsFacts()


def test_hits_are_those_of_all_caches() -> None:
    page = b"vllm:prefix_cache_hits_total 7\nvllm:external_prefix_cache_hits_total 5"
    assert all_hits(parse_metrics(page)) == 12
    assert all_hits(parse_metrics(page.splitlines()[0])) == 7
    assert all_hits(parse_metrics(page.splitlines()[1])) is None


def test_a_sample_that_is_missing_is_unknown_and_one_of_zero_is_not() -> None:
    assert parse_metrics(b"") == MetricsFacts()
    assert parse_metrics(b"<html>404</html>") == MetricsFacts()
    assert parse_metrics(b"vllm:prefix_cache_hits_total 0").cache_hits == 0
    assert parse_metrics(b"process_start_time_seconds 0").started is None


@pytest.mark.parametrize(
    ("states", "asleep"),
    [
        ({"awake": 1, "weights_offloaded": 0, "discard_all": 0}, False),
        ({"awake": 0, "weights_offloaded": 1, "discard_all": 0}, True),
        ({"awake": 0, "weights_offloaded": 0, "discard_all": 1}, True),
        ({"awake": 0, "weights_offloaded": 0, "discard_all": 0}, True),
        ({"weights_offloaded": 1}, True),
        ({"awake": math.nan, "something_new": 1}, False),
        ({}, False),
    ],
)
def test_sleep(states: dict[str, float], asleep: bool) -> None:
    page = "".join(
        f'vllm:engine_sleep_state{{engine="0",sleep_state="{name}"}} {value}\n' for name, value in states.items()
    )
    assert parse_metrics(page).asleep is asleep


pieces = st.sampled_from(
    [
        *(NAME, b"vllm:cache_config_info", b"vllm:engine_sleep_state", b"process_start_time_seconds"),
        *(
            b"{",
            b"}",
            b'"',
            b"\\",
            b"=",
            b",",
            b" ",
            b"\n",
            b"1",
            b"-",
            b"sleep_state",
            b"awake",
            b"\xff",
            b"\0",
            b"NaN",
        ),
    ]
)


@given(st.lists(pieces | st.binary(max_size=4), max_size=40).map(b"".join))
def test_no_bytes_break_the_reader_of_metrics(page: bytes) -> None:
    facts = parse_metrics(page)
    if facts.cache_labels is not None:
        assert isinstance(profile_from_labels(facts.cache_labels), CacheProfile)


odd_values = st.sampled_from(["", "0", "-1", "16", "None", "True", "nan", "1e99", "99999999999999", "align", "٣", "²"])
label_keys = ["block_size", "num_gpu_blocks", "enable_prefix_caching", "prefix_match_unit", "sliding_window"]
label_keys += ["mamba_block_size", "mamba_cache_mode", "kv_cache_size_tokens", "kv_offloading_size"]


@given(st.dictionaries(st.sampled_from(label_keys), odd_values | st.text(max_size=5)))
def test_every_set_of_labels_gives_a_profile(labels: dict[str, str]) -> None:
    assert profile_from_labels(labels).unit >= 1
