"""Counting: one at a time, and by rows that know their series."""

from __future__ import annotations

from router.metrics import MAX_SERIES, OTHER, Metrics


def test_a_row_counts_what_its_requests_have_in_common() -> None:
    metrics = Metrics()
    row = metrics.row("/v1/chat/completions", "m", "w", "hit")
    for matched, status, outcome in ((3, 200, "ok"), (5, 500, "upstream_error"), (0, 200, "ok")):
        row.decided(8, matched)
        row.first_byte(0.02)
        row.answered(status, outcome)
        row.took(0.5)
        row.judged("confirmed" if matched else "fell_short")
        row.cached(64, 16 * matched)
    assert metrics.row("/v1/chat/completions", "m", "w", "hit") is row
    assert metrics.decisions.values == {("m", "hit"): 3}
    assert (metrics.blocks_queried.total(), metrics.blocks_matched.total()) == (24, 8)
    requests = metrics.requests.values
    assert requests == {("/v1/chat/completions", "m", "w", "200"): 2, ("/v1/chat/completions", "m", "w", "500"): 1}
    assert metrics.outcomes.values == {("ok",): 2, ("upstream_error",): 1}
    assert metrics.verdicts.values == {("w", "confirmed"): 2, ("w", "fell_short"): 1}
    assert metrics.predicted.values == {("m", "w"): 192}
    assert metrics.reported.values == {("m", "w"): 128}
    assert metrics.confirmed.values == {("m", "w"): 48 + 64}
    text = metrics.render().decode()
    assert 'router_ttft_seconds_bucket{le="0.01",model="m",reason="hit",worker="w"} 0.0' in text
    assert 'router_ttft_seconds_bucket{le="0.025",model="m",reason="hit",worker="w"} 3.0' in text
    assert 'router_request_seconds_sum{endpoint="/v1/chat/completions"} 1.5' in text


def test_rows_and_single_counts_share_their_series() -> None:
    metrics = Metrics()
    metrics.requests.inc(("/e", "m", "w", "200"))
    metrics.row("/e", "m", "w", "miss").answered(200, "ok")
    metrics.row("/e", "m", "w", "hit").answered(200, "ok")
    metrics.requests.inc(("/e", "m", "w", "200"))
    assert metrics.requests.values == {("/e", "m", "w", "200"): 4}


def test_labels_without_end_are_counted_together_and_rows_are_bounded() -> None:
    metrics = Metrics()
    for number in range(MAX_SERIES + 10):
        metrics.row("/e", f"m{number}", "w", "hit").decided(1, 0)
    metrics.row("/e", "m0", "w", "hit").decided(1, 0)
    counts = metrics.decisions.values
    assert len(counts) == MAX_SERIES + 1
    assert (counts[("m0", "hit")], counts[(OTHER, OTHER)]) == (2, 10)
    assert sum(counts.values()) == MAX_SERIES + 11
