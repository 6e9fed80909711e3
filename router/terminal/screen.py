"""What `top` shows, as lines: the replicas, findings, workers, and the last decisions. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from router.terminal.style import Style, cut, plain, table

Json = Mapping[str, Any]
MARKS: Final = {"unreachable": ("!", "red"), "problem": ("!", "red"), "advice": ("*", "yellow"), "note": ("-", "cyan")}
BAR: Final = 8
DECISIONS: Final = 12
FINDINGS: Final = 6


@dataclass(frozen=True, slots=True)
class View:
    """One replica at one moment. Without `state` the `trouble` says why; `workers` may be there all the same.

    `rate` is decisions a second since the view before, None for the first one.
    """

    url: str
    state: Json | None = None
    trouble: str | None = None
    workers: Sequence[Json] = field(default_factory=tuple)
    requests: float | None = None
    rate: float | None = None


def decided(view: View) -> float | None:
    """Decisions of a replica since its start."""
    if view.state is None:
        return view.requests
    return float(sum(view.state["totals"]["reasons"].values()))


def lines(views: Sequence[View], style: Style, width: int, height: int | None = None) -> list[str]:
    """The whole screen; with a height the least important is left out, from below."""
    made = list(_replicas(views, style))
    for part in (_findings(views, style, width), _workers(views, style), _sums(views, style)):
        made += _apart(part)
    # Above the decisions are their heads and an empty line.
    room = DECISIONS if height is None else max(0, height - len(made) - 3)
    made += _apart(_decisions(views, style, room))
    return [cut(line, width) for line in made[: None if height is None else height]]


def _apart(part: Iterable[str]) -> list[str]:
    """The lines with an empty one before them, if there are any."""
    found = list(part)
    return ["", *found] if found else []


# -- replicas --------------------------------------------------------------------------------------------------


def _replicas(views: Sequence[View], style: Style) -> Iterator[str]:
    for view in views:
        url = style.paint(plain(view.url), "bold")
        if view.state is None:
            yield f"{url}  {style.paint(plain(view.trouble or 'no answer'), 'red')}"
            if view.workers:
                count = f" ({view.requests:,.0f} so far)" if view.requests is not None else ""
                rate = f"  {view.rate:,.1f} req/s" if view.rate is not None else ""
                yield f"  The fleet is shown, decisions{count} are not.{rate}"
            continue
        state = view.state
        parts = [url, _readiness(state, style), f"policy {plain(state['policy'])}", _sync(state["sync"], style)]
        if view.rate is not None:
            parts.append(f"{view.rate:,.1f} req/s")
        yield "  ".join(part for part in parts if part)


def _readiness(state: Json, style: Style) -> str:
    if state["draining"]:
        return style.paint("draining", "yellow")
    return style.paint("ready", "green") if state["ready"] else style.paint("not ready", "red")


def _sync(sync: Json, style: Style) -> str:
    if sync["up"] is None:
        return "alone"
    peers = int(sync["peers"])
    others = f"{peers} other{'s' * (peers != 1)}"
    if not sync["up"]:
        return style.paint(f"news down, {others}", "red")
    lag = sync.get("lag_seconds")
    return f"news up, {others}" + (f", {lag * 1000:.1f} ms" if lag is not None else "")


def _findings(views: Sequence[View], style: Style, width: int) -> Iterator[str]:
    seen: dict[str, str] = {}
    codes: set[str] = set()
    for view in views:
        found = (view.state or {}).get("findings", ())
        # What two replicas find alike differs in figures; once is enough.
        seen |= {plain(one["text"]): str(one["level"]) for one in found if one["code"] not in codes}
        codes |= {str(one["code"]) for one in found}
    for text, level in list(seen.items())[:FINDINGS]:
        mark, kind = MARKS.get(level, ("-", "cyan"))
        for number, line in enumerate(_wrapped(text, width - 2)):
            yield f"{style.paint(mark, kind) if number == 0 else ' '} {line}"


def _wrapped(text: str, width: int) -> list[str]:
    made = [""]
    for word in text.split():
        if made[-1] and len(made[-1]) + 1 + len(word) > width:
            made.append(word)
        else:
            made[-1] += " " * bool(made[-1]) + word
    return made


# -- workers ---------------------------------------------------------------------------------------------------


def _workers(views: Sequence[View], style: Style) -> list[str]:
    fleet: dict[str, list[Json]] = {}
    for view in views:
        for row in view.state["workers"] if view.state else view.workers:
            fleet.setdefault(str(row["id"]), []).append(row)
    if not fleet:
        return ["No workers."] if any(view.state or view.workers for view in views) else []
    head = ("worker", "state", "in flight", "", "cached: said", "predicted", "blocks", "capacity", "age", "model")
    rows = [_worker_row(rows, style) for _, rows in sorted(fleet.items())]
    return table(head, rows, style, right=(2, 4, 5, 6, 7, 8))


def _worker_row(rows: Sequence[Json], style: Style) -> list[str]:
    """One worker as all replicas see it: its requests are theirs together, its worst state counts."""
    first = rows[0]
    states = {"draining" if row["draining"] else str(row["state"]) for row in rows}
    state = states.pop() if len(states) == 1 else "/".join(sorted(states | {str(first["state"])}))
    # A replica that hears of the others counts their requests too; one that does not knows of its own alone.
    load = max([*(int(row["in_flight"]["all"]) for row in rows), sum(int(row["in_flight"]["local"]) for row in rows)])
    said = [row["cached"] for row in rows if "cached" in row]
    prompt, reported, predicted = (
        sum(int(one[name]) for one in said) for name in ("prompt_tokens", "reported_tokens", "predicted_tokens")
    )
    models = [model if isinstance(model, str) else str(model["name"]) for model in first["models"]]
    more = f" +{len(models) - 1}" if len(models) > 1 else ""
    cache = first["cache"]
    return [
        plain(first["id"]),
        style.state(state) + (" asleep" if first.get("asleep") else ""),
        f"{load}/{first['slots']}",
        _bar(load, int(first["slots"])),
        _share(reported, prompt),
        _share(predicted, prompt),
        f"{int(first['blocks']):,}",
        "off" if cache["enabled"] is False else _capacity(cache),
        _age(first["epoch_age_seconds"]),
        plain(models[0] if models else "none", 40) + more,
    ]


def _bar(load: int, slots: int) -> str:
    """Requests up to a few by number, beyond that as a share of the slots."""
    full = BAR if slots <= 0 else min(BAR, -(-load * BAR // slots))
    return "#" * full + "." * (BAR - full)


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "-"


def _capacity(cache: Json) -> str:
    """Tokens that it is taken to hold, with a mark where that is not what it declares."""
    declared, learned = cache["capacity_tokens"], cache.get("learned_capacity_tokens")
    return _short(declared) if learned in (None, declared) else f"~{_short(learned)}"


def _short(tokens: object) -> str:
    if not isinstance(tokens, int | float):
        return "-"
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if tokens >= size:
            return f"{tokens / size:.1f}{unit}"
    return f"{tokens:.0f}"


def _age(seconds: object) -> str:
    if not isinstance(seconds, int | float):
        return "-"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


# -- what came of it -------------------------------------------------------------------------------------------


def _sums(views: Sequence[View], style: Style) -> Iterator[str]:
    states = [view.state for view in views if view.state is not None]
    if not states:
        return
    reasons: dict[str, int] = {}
    for state in states:
        for reason, count in state["totals"]["reasons"].items():
            reasons[reason] = reasons.get(reason, 0) + int(count)
    whole = sum(reasons.values())
    shares = [f"{plain(reason)} {_share(count, whole)}" for reason, count in _by_count(reasons) if count]
    yield f"{whole:,} decisions: {', '.join(shares)}" if whole else "No decisions yet."
    # Those of one replica: a median of two is not to be had from their medians.
    with_hit, without = states[0]["ttft"]["with_hit"], states[0]["ttft"]["without_hit"]
    parts = [
        f"first byte {name} {_seconds(found['p50'])} (p95 {_seconds(found['p95'])})"
        for name, found in (("with a hit", with_hit), ("without", without))
        if found["count"]
    ]
    saved = sum(float(state["prefill"]["saved_seconds"] or 0.0) for state in states if "prefill" in state)
    if saved:
        parts.append(f"{saved:,.0f} s of prefill saved")
    if parts:
        yield "; ".join(parts) + (" (times of the first replica)" if len(states) > 1 else "")
    lost = {name: sum(int(state["totals"][name]) for state in states) for name in ("shed", "aborts", "retries")}
    if any(lost.values()):
        yield ", ".join(f"{count:,} {name}" for name, count in lost.items() if count)


def _by_count(reasons: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(reasons.items(), key=lambda pair: (-pair[1], pair[0]))


def _seconds(value: object) -> str:
    if not isinstance(value, int | float):
        return "-"
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s"


def _decisions(views: Sequence[View], style: Style, room: int) -> list[str]:
    found = [decision for view in views if view.state for decision in view.state["decisions"]]
    found.sort(key=lambda decision: -float(decision["at"]))
    if not found or room < 1:
        return []
    head = ("time", "reason", "worker", "match", "tokens", "load", "first byte", "outcome", "request")
    rows = [
        [
            time.strftime("%H:%M:%S", time.localtime(float(one["at"]))),
            plain(one["reason"]),
            plain(one["worker"]),
            f"{one['matched_blocks']}/{one['blocks']}",
            f"{int(one['prompt_tokens']):,}",
            f"{one['load']}/{one['min_load']}",
            _seconds(one.get("first_byte_seconds")),
            plain(one.get("outcome") or "running"),
            plain(one["request_id"], 32),
        ]
        for one in found[:room]
    ]
    return table(head, rows, style, right=(3, 4, 5, 6))
