"""A study as tables for people and as JSON for programs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from router.replay.catalogue import WORK
from router.replay.measure import FIGURES, TTFT, Estimate
from router.replay.study import Cell, Study

TIMES = ("ttft_mean", "ttft_p50", "ttft_p90", "ttft_p99", "end_mean", "end_p90")
END = "end_mean"
SHOWN = (*TIMES, "hit", "spread")


@dataclass(frozen=True, slots=True)
class Comparison:
    """A rule's times over the reference's in all cells: geometric means of the ratios, and how TTFT's cells went.

    A cell (mean, p90 or p99 at one load) counts as won or lost where the two differ by more than two standard errors of
    the difference and by more than 1 %.
    """

    rule: str
    ratios: dict[str, float]
    better: int
    even: int
    worse: int


def shown(estimate: Estimate, digits: int = 2) -> str:
    """A figure with its standard error."""
    return f"{estimate.mean:.{digits}f} ± {estimate.error:.{digits}f}"


def compare(study: Study, reference: str) -> list[Comparison]:
    """Every other rule against one of them."""
    found = []
    for rule in study.plan.rules:
        pairs = list(_pairs(study, rule, reference))
        if rule == reference or not pairs:
            continue
        verdicts = [_verdict(a.estimates[name], b.estimates[name]) for a, b in pairs for name in TTFT]
        ratios = {name: _ratio(pairs, name) for name in (*TTFT, END)}
        found.append(Comparison(rule, ratios, verdicts.count(1), verdicts.count(0), verdicts.count(-1)))
    return found


def _pairs(study: Study, rule: str, reference: str) -> Iterator[tuple[Cell, Cell]]:
    for cell in study.cells:
        other = study.cell(cell.workload, cell.load, reference)
        if cell.rule == rule and other is not None:
            yield cell, other


def _verdict(other: Estimate, reference: Estimate) -> int:
    margin = max(2 * math.hypot(other.error, reference.error), 0.01 * reference.mean)
    difference = other.mean - reference.mean
    return 0 if abs(difference) <= margin else (1 if difference > 0 else -1)


def _ratio(pairs: Sequence[tuple[Cell, Cell]], name: str) -> float:
    logs = [math.log(cell.estimates[name].mean / other.estimates[name].mean) for cell, other in pairs]
    return math.exp(sum(logs) / len(logs))


def as_text(study: Study) -> str:
    """Tables in Markdown."""
    lines: list[str] = []
    for name in study.workloads:
        lines.append(f"## {name}")
        lines.append("")
        lines.append(f"{study.requests[name]:,} requests, full load {study.capacities[name]:.2f} requests/s.")
        lines.append("Seconds ± standard error over seeds.")
        for load in study.plan.loads:
            lines += ["", f"### {name} at {load:.0%}", ""]
            lines.append("| rule | " + " | ".join(FIGURES[figure] for figure in SHOWN) + " |")
            lines.append("|" + "---|" * (len(SHOWN) + 1))
            for rule in study.plan.rules:
                cell = study.cell(name, load, rule)
                if cell is not None:
                    estimates = cell.estimates
                    cells = [shown(estimates[figure], 2 if figure in TIMES else 3) for figure in SHOWN]
                    lines.append(f"| {rule} | " + " | ".join(cells) + " |")
        lines.append("")
    lines += _comparison_lines(study)
    slowest = max(study.seconds_per_12000.values())
    lines.append(f"The slowest rule took {slowest:.1f} s of processor time for 12,000 requests.")
    return "\n".join(lines) + "\n"


def reference_of(study: Study) -> str:
    """The rule that the others are held against: `work` where it is there, else the first."""
    return WORK if WORK in study.plan.rules else study.plan.rules[0]


def _comparison_lines(study: Study) -> list[str]:
    reference = reference_of(study)
    found = compare(study, reference)
    if not found:
        return []
    lines = [f"## TTFT against `{reference}`, all cells", ""]
    lines.append(f"| rule | mean | p90 | p99 | `{reference}` better | even | worse | end to end mean |")
    lines.append("|---|---|---|---|---|---|---|---|")
    for row in found:
        ratios = " | ".join(f"{row.ratios[name]:.2f}" for name in TTFT)
        lines.append(f"| {row.rule} | {ratios} | {row.better} | {row.even} | {row.worse} | {row.ratios[END]:.2f} |")
    return [*lines, ""]


def as_json(study: Study) -> dict[str, object]:
    """Everything, with the figures of each seed."""
    plan = study.plan
    scenario = asdict(plan.scenario)
    # Each load has its own pace, and each run its own seed.
    del scenario["pace"], scenario["seed"]
    scenario["engine"]["profile"] = str(plan.scenario.engine.profile.rule.value)
    return {
        "scenario": scenario,
        "seeds": plan.seeds,
        "warmup": plan.warmup,
        "requests": study.requests,
        "capacity_requests_per_second": study.capacities,
        "processor_seconds_per_12000": study.seconds_per_12000,
        "reference": reference_of(study),
        "comparison": [asdict(row) for row in compare(study, reference_of(study))],
        "cells": [
            {
                "workload": cell.workload,
                "load": cell.load,
                "rule": cell.rule,
                "figures": {name: asdict(estimate) for name, estimate in cell.estimates.items()},
                "runs": list(cell.runs),
            }
            for cell in study.cells
        ],
    }
