"""A study as one HTML page that needs nothing from elsewhere: plots as SVG, and the tables."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from router.replay.measure import FIGURES, TTFT, Estimate
from router.replay.plot import bars, lines
from router.replay.study import Study
from router.replay.tables import END, SHOWN, TIMES, compare, reference_of, shown

STYLE = """
:root { color-scheme: light dark; --ink: #1c1e21; --dim: #6b7075; --rule: #d8dade; --paper: #fff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --dim: #9aa0a6; --rule: #3c4043; --paper: #16181a; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
  max-width: 76rem; padding: 0 1rem; }
h1, h2, h3 { line-height: 1.2; } h2 { margin-top: 2.5rem; border-top: 1px solid var(--rule); padding-top: 1rem; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .6rem; text-align: right; border-bottom: 1px solid var(--rule); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } td.best { font-weight: 600; } small, p.note { color: var(--dim); }
.plots { display: flex; flex-wrap: wrap; gap: 1.5rem; } figure { margin: 0; } .wide { overflow-x: auto; }
svg { max-width: 100%; height: auto; } svg text { fill: var(--ink); font: 12px system-ui, sans-serif; }
svg .axis { stroke: var(--rule); } svg .dim { fill: var(--dim); }
"""
PLOTS = ("ttft_mean", "ttft_p99", "end_mean")


def as_html(study: Study) -> str:
    """The page."""
    body = [_head(study)]
    for name in study.workloads:
        body.append(f"<h2>{escape(name)}</h2>")
        body.append(
            f'<p class="note">{study.requests[name]:,} requests; full load is '
            f"{study.capacities[name]:.2f} requests a second.</p>"
        )
        body.append('<div class="plots">')
        body.extend(_plot(study, name, figure) for figure in PLOTS)
        body.append(_hits(study, name))
        body.append("</div>")
        body.extend(_table(study, name, load) for load in study.plan.loads)
    body.append(_comparison(study))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Replay</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body>{''.join(body)}</body></html>\n"
    )


def _head(study: Study) -> str:
    scenario = study.plan.scenario
    engine = scenario.engine
    facts = [
        f"{scenario.workers} workers of {engine.prefill_rate:,.0f} prefill tokens/s",
        f"{engine.running} running requests and {engine.cache_tokens:,} cache tokens each",
        f"{study.plan.seeds} seeds",
    ]
    if scenario.replicas > 1:
        facts.append(
            f"{scenario.replicas} replicas, news after {scenario.delay * 1000:.0f} ms, {scenario.loss:.1%} of it lost"
        )
    return f"<h1>Replay</h1><p>{escape('; '.join(facts))}. Times are seconds, ± standard error over seeds.</p>"


def _plot(study: Study, workload: str, figure: str) -> str:
    series: dict[str, Sequence[tuple[float, Estimate]]] = {}
    for rule in study.plan.rules:
        points = []
        for load in sorted(study.plan.loads):
            cell = study.cell(workload, load, rule)
            if cell is not None:
                points.append((load, cell.estimates[figure]))
        series[rule] = points
    return f"<figure>{lines(f'{FIGURES[figure]} (s) by load', series)}</figure>"


def _hits(study: Study, workload: str) -> str:
    load = max(study.plan.loads)
    values = {}
    for rule in study.plan.rules:
        cell = study.cell(workload, load, rule)
        if cell is not None:
            values[rule] = cell.estimates["hit"]
    return f"<figure>{bars(f'Hit share at {load:.0%}', values)}</figure>"


def _table(study: Study, workload: str, load: float) -> str:
    cells = [cell for cell in study.cells if cell.workload == workload and cell.load == load]
    estimates = [(cell.rule, cell.estimates) for cell in cells]
    best = {name: min(found[name].mean for _, found in estimates) for name in TIMES}
    rows = []
    for rule, found in estimates:
        columns = []
        for name in SHOWN:
            mark = ' class="best"' if name in TIMES and found[name].mean <= best[name] else ""
            columns.append(f"<td{mark}>{shown(found[name], 2 if name in TIMES else 3)}</td>")
        rows.append(f"<tr><td>{escape(rule)}</td>{''.join(columns)}</tr>")
    head = "".join(f"<th>{escape(FIGURES[name])}</th>" for name in SHOWN)
    return (
        f'<h3>{escape(workload)} at {load:.0%}</h3><div class="wide"><table><tr><th>rule</th>{head}</tr>'
        f"{''.join(rows)}</table></div>"
    )


def _comparison(study: Study) -> str:
    reference = reference_of(study)
    rows = []
    for row in compare(study, reference):
        ratios = "".join(f"<td>{row.ratios[name]:.2f}</td>" for name in TTFT)
        rows.append(
            f"<tr><td>{escape(row.rule)}</td>{ratios}<td>{row.better}</td><td>{row.even}</td><td>{row.worse}</td>"
            f"<td>{row.ratios[END]:.2f}</td></tr>"
        )
    if not rows:
        return ""
    name = escape(reference)
    return (
        f"<h2>TTFT against {name}, all cells</h2>"
        f'<div class="wide"><table><tr><th>rule</th><th>mean</th><th>p90</th><th>p99</th><th>{name} better</th>'
        f"<th>even</th><th>worse</th><th>end to end mean</th></tr>{''.join(rows)}</table></div>"
    )
