"""The printed form of a diagnosis, for people and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from router.doctor.facts import Facts, Probe
from router.doctor.findings import Finding, Level
from router.doctor.judge import PLAN, Judgement
from router.workers.registry import worker_id

_WIDTH = 110
_MARKS = {Level.NOTE: "-", Level.ADVICE: "*", Level.PROBLEM: "!", Level.UNREACHABLE: "!"}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One worker: what was learnt, what the probe shows, and what follows."""

    facts: Facts
    judgement: Judgement | None
    findings: tuple[Finding, ...]


def as_json(diagnoses: Sequence[Diagnosis], fleet: Sequence[Finding], code: int) -> dict[str, object]:
    """All of it by name; None is unknown."""
    return {
        "exit_code": code,
        "workers": [_worker(one) for one in diagnoses],
        "fleet": [_finding(finding) for finding in fleet],
    }


def as_text(diagnoses: Sequence[Diagnosis], fleet: Sequence[Finding]) -> str:
    """The same for a terminal: a head for each worker, its findings (`!` are problems), the table of its probe."""
    lines: list[str] = []
    for one in diagnoses:
        lines += [_head(one.facts), *_findings(one.findings)]
        if one.facts.probe is not None and one.facts.probe.sent:
            lines += ["", *_table(one.facts.probe)]
        lines.append("")
    if fleet:
        lines += ["the fleet", *_findings(fleet), ""]
    return "\n".join(lines)


def _head(facts: Facts) -> str:
    engine = f"vLLM {facts.version}" if facts.version is not None and facts.labels is not None else facts.version
    parts = [f"{worker_id(facts.url)}  {facts.url}", *filter(None, [engine, ", ".join(facts.models)])]
    profile = facts.profile
    if facts.labels is not None and profile.enabled is not False:
        parts.append(
            f"blocks of {profile.block_size:,} tokens, hits on every {profile.unit:,}, floor {profile.floor_tokens:,}"
        )
    return "  ".join(parts)


def _findings(findings: Sequence[Finding]) -> Iterator[str]:
    for finding in findings:
        mark = _MARKS[finding.level]
        yield from textwrap.wrap(
            f"{mark} {finding.text}", _WIDTH, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False
        )
        if finding.change is not None:
            yield from textwrap.wrap(
                f"-> {finding.change}",
                _WIDTH,
                initial_indent="    ",
                subsequent_indent="       ",
                break_on_hyphens=False,
            )


def _names() -> list[str]:
    names: list[str] = []
    for number, text in enumerate(PLAN):
        if text not in PLAN[:number]:
            names.append("a new prompt" if not number else "a different one")
        else:
            names.append("the same again" if text == PLAN[number - 1] else "the first again")
    return names


def _table(probe: Probe) -> Iterator[str]:
    yield f"    {'prompt':<18}{'tokens':>10}{'cached':>10}{'time':>12}"
    for name, sent in zip(_names(), probe.sent, strict=False):
        tokens = "-" if sent.tokens is None else f"{sent.tokens:,}"
        cached = "-" if sent.cached_tokens is None else f"{sent.cached_tokens:,}"
        yield f"    {name:<18}{tokens:>10}{cached:>10}{sent.seconds:>10.3f} s"


def _finding(finding: Finding) -> dict[str, object]:
    return {"code": finding.code, "level": finding.level.value, "text": finding.text, "change": finding.change}


def _worker(one: Diagnosis) -> dict[str, object]:
    facts, profile = one.facts, one.facts.profile
    known = facts.labels is not None
    answer: dict[str, object] = {
        "worker": worker_id(facts.url),
        "url": facts.url,
        "reachable": facts.trouble is None,
        "version": facts.version,
        "models": list(facts.models),
        "window": facts.window,
        "hybrid": facts.hybrid,
        "engines": facts.engines,
        "cache": {
            "known": known,
            "enabled": profile.enabled,
            "block_size": profile.block_size if known else None,
            "hit_unit": profile.unit if known else None,
            "floor_tokens": profile.floor_tokens if known else None,
            "rule": profile.rule.value if known else None,
            "tiers": [tier.medium for tier in profile.tiers],
            "capacity_tokens": profile.capacity_tokens,
        },
        "under_floor": _under_floor(facts),
        "findings": [_finding(finding) for finding in one.findings],
        "probe": None,
    }
    if facts.probe is not None:
        answer["probe"] = _probe(facts.probe, one.judgement)
    return answer


def _under_floor(facts: Facts) -> dict[str, object] | None:
    lengths = facts.lengths
    if lengths is None or not lengths.total or facts.labels is None:
        return None
    least, most = lengths.below(facts.profile.floor_tokens)
    return {"prompts": lengths.total, "share_least": least / lengths.total, "share_most": most / lengths.total}


def _probe(probe: Probe, judgement: Judgement | None) -> dict[str, object]:
    return {
        "verdict": None if judgement is None else judgement.verdict.value,
        "confidence": None if judgement is None else judgement.confidence.value,
        "evidence": [] if judgement is None else list(judgement.evidence),
        "time_share": None if judgement is None else judgement.share,
        "skipped": probe.skipped,
        "busy": probe.busy,
        "counted_queries": probe.counted_queries,
        "counted_hits": probe.counted_hits,
        "prompts": [
            {
                "prompt": name,
                "tokens": sent.tokens,
                "cached_tokens": sent.cached_tokens,
                "seconds": sent.seconds,
            }
            for name, sent in zip(_names(), probe.sent, strict=False)
        ],
    }
