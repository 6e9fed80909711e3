"""The comparison as a table, as JSON and as a page. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from loadtest.live.judge import SHOWN, over_rounds
from loadtest.live.plan import Plan
from loadtest.live.run import Outcome
from loadtest.live.systems import title
from loadtest.report.page import facts as fact_list
from loadtest.report.page import figures, from_markdown, page
from loadtest.report.plots import Bar, Point, bars, lines
from router.replay.measure import Estimate, quantile

# Between these in docs/replay.md is the latest run that was meant for it.
BEGIN = "<!-- live: begin -->"
END = "<!-- live: end -->"
QUANTILES = (0.1, 0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)


def as_table(outcomes: Sequence[Outcome]) -> str:
    """The table in Markdown: means over rounds and their standard errors."""
    rows = [
        "| system | TTFT mean, ms | p90 | p99 | end to end mean, ms | hit share | spread | requests | errors "
        "| CPU, run | workers | machine |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for outcome in outcomes:
        found = over_rounds(outcome.rounds)
        cells = [_milliseconds(found[name]) for name in ("ttft_mean", "ttft_p90", "ttft_p99", "end_mean")]
        cells += [f"{found['hit'].mean:.1%}", f"{found['spread'].mean:.2f}"]
        cells += [str(sum(one.requests for one in outcome.rounds)), str(sum(one.errors for one in outcome.rounds))]
        cells += [f"{found[name].mean:.0%}" for name in ("cpu", "worker_cpu", "machine")]
        rows.append(f"| {title(outcome.name)} | {' | '.join(cells)} |")
    return "\n".join(rows)


def as_text(facts: Mapping[str, str], outcomes: Sequence[Outcome]) -> str:
    """What documentation shows: where and how it was measured, and the table."""
    return "\n".join(
        ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in facts.items()), "", as_table(outcomes)]
    )


def _milliseconds(value: Estimate) -> str:
    error = f" ± {value.error * 1e3:,.0f}" if value.error else ""
    return f"{value.mean * 1e3:,.0f}{error}"


def said(plan: Plan, outcomes: Sequence[Outcome]) -> list[tuple[str, str]]:
    """What was played to whom."""
    rounds = max(len(outcome.rounds) for outcome in outcomes)
    return [
        ("traffic", f"{plan.kind}, {plan.rate:g} requests/s, {plan.speed:g} times as fast as modelled"),
        ("rounds", f"{rounds} of {plan.wall_seconds:.0f} s, measured after {plan.warm_wall_seconds:.0f} s"),
        (
            "workers",
            f"{plan.workers}, {plan.prefill_tokens_per_second:,.0f} tokens/s of prefill, "
            f"{plan.decode_seconds_per_token * 1e3:g} ms a token, room for {plan.cache_tokens:,} tokens",
        ),
    ]


def as_json(plan: Plan, outcomes: Sequence[Outcome]) -> str:
    """The plan, each round of each system, and their means with standard errors."""
    systems = {
        outcome.name: {
            "title": title(outcome.name),
            "rounds": [asdict(one) for one in outcome.rounds],
            "mean": {name: asdict(value) for name, value in over_rounds(outcome.rounds).items()},
        }
        for outcome in outcomes
    }
    return json.dumps({"plan": asdict(plan), "systems": systems}, indent=1) + "\n"


def as_html(plan: Plan, outcomes: Sequence[Outcome]) -> str:
    """One page that needs nothing else."""
    shown = {
        "Times, ms": (("ttft_mean", "TTFT mean"), ("ttft_p90", "p90"), ("ttft_p99", "p99"), ("end_mean", "end to end")),
        "Hit share, %": (("hit", "of prompt tokens"),),
        "Spread": (("spread", "busiest worker over mean"),),
    }
    factors = {"Times, ms": 1e3, "Hit share, %": 100.0, "Spread": 1.0}
    plots = [
        bars(
            name,
            [label for _, label in fields],
            {title(one.name): [_bar(one, field, factors[name]) for field, _ in fields] for one in outcomes},
        )
        for name, fields in shown.items()
    ]
    plots.append(
        lines("TTFT by share of requests, ms", {title(one.name): _quantiles(one) for one in outcomes}, "per cent")
    )
    return page(
        "Routers before simulated workers",
        [fact_list(said(plan, outcomes)), figures(plots), from_markdown(as_table(outcomes))],
    )


def _bar(outcome: Outcome, name: str, factor: float) -> Bar:
    assert name in SHOWN
    values = [getattr(one, name) * factor for one in outcome.rounds]
    return Bar(sum(values) / len(values), min(values), max(values))


def _quantiles(outcome: Outcome) -> list[Point]:
    ordered = sorted(one.first - one.arrived for one in outcome.seen if one.ok)
    return [(share * 100, quantile(ordered, share) * 1e3) for share in QUANTILES]
