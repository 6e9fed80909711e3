"""Many conversations as one HTML page: policies beside each other, in plots and in the table. Pure."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence

from loadtest.report.page import facts, figures, from_markdown, page
from loadtest.report.plots import Bar, Point, bars, lines
from loadtest.spread import Load, Played, Turn, as_table

BINS = 24


def as_html(runs: Sequence[Played], load: Load) -> str:
    """The page."""
    shape = load.shape
    said = [
        ("conversations", f"{load.conversations:,} of {shape.turns} turns, begun over {load.arrival_seconds:g} s"),
        ("prompts", f"{shape.first_tokens:,} tokens at first, {shape.growth_tokens:,} more with each turn"),
        ("policies", ", ".join(run.result.policy for run in runs)),
    ]
    plots = [
        lines("Time to first byte by turn, median, ms", _named(runs, _by_turn), "turn", dots=True),
        lines("Time to first byte by turn, 95 %, ms", _named(runs, _by_turn_slow), "turn", dots=True),
        lines("Share of prompt tokens from cache over time", _named(runs, _hits_over_time), "seconds"),
        lines("Time to first byte over time, median, ms", _named(runs, _ttft_over_time), "seconds"),
        _spread(runs),
        _reasons(runs),
        _comparison(runs),
    ]
    return page("Many conversations", [facts(said), figures(plots), from_markdown(as_table([r.result for r in runs]))])


def _named(runs: Sequence[Played], of: Callable[[Played], list[Point]]) -> dict[str, list[Point]]:
    return {run.result.policy: of(run) for run in runs}


def _turns(run: Played) -> Iterable[Turn]:
    return (turn for turns in run.conversations for turn in turns)


def _quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _times_by_turn(run: Played) -> dict[int, list[float]]:
    times: dict[int, list[float]] = defaultdict(list)
    for turns in run.conversations:
        for number, turn in enumerate(turns, 1):
            times[number].append(turn.seconds * 1e3)
    return times


def _by_turn(run: Played) -> list[Point]:
    return [(number, statistics.median(found)) for number, found in sorted(_times_by_turn(run).items())]


def _by_turn_slow(run: Played) -> list[Point]:
    return [(number, _quantile(found, 0.95)) for number, found in sorted(_times_by_turn(run).items())]


def _binned(run: Played) -> list[tuple[float, list[Turn]]]:
    """The turns by when they were asked, and the middle of each stretch of time."""
    turns = sorted(_turns(run), key=lambda turn: turn.at)
    if not turns:
        return []
    width = (turns[-1].at + 1e-9) / BINS
    bins: dict[int, list[Turn]] = defaultdict(list)
    for turn in turns:
        bins[int(turn.at / width)].append(turn)
    return [((number + 0.5) * width, found) for number, found in sorted(bins.items())]


def _hits_over_time(run: Played) -> list[Point]:
    return [
        (at, sum(turn.cached_tokens for turn in found) / max(1, sum(turn.prompt_tokens for turn in found)))
        for at, found in _binned(run)
    ]


def _ttft_over_time(run: Played) -> list[Point]:
    return [(at, statistics.median(turn.seconds for turn in found) * 1e3) for at, found in _binned(run)]


def _alone(value: float) -> Bar:
    return Bar(value, value, value)


def _spread(runs: Sequence[Played]) -> str:
    """Turns on each worker, the busiest first, since names differ from run to run."""
    counts = {run.result.policy: Counter(turn.worker for turn in _turns(run)) for run in runs}
    most = max((len(found) for found in counts.values()), default=0)
    series: dict[str, list[Bar | None]] = {}
    for policy, found in counts.items():
        ordered = [_alone(count) for _, count in found.most_common()]
        series[policy] = [*ordered, *[None] * (most - len(ordered))]
    return bars("Turns on each worker", [f"worker {number}" for number in range(1, most + 1)], series)


def _reasons(runs: Sequence[Played]) -> str:
    counts = {run.result.policy: Counter(turn.reason for turn in _turns(run) if turn.reason) for run in runs}
    names = sorted({reason for found in counts.values() for reason in found})
    return bars(
        "Decisions by reason",
        names,
        {policy: [_alone(found[name]) for name in names] for policy, found in counts.items()},
    )


def _comparison(runs: Sequence[Played]) -> str:
    """What a user of each policy gets."""
    shown: list[tuple[str, Callable[[Played], float]]] = [
        ("first turn p50, ms", lambda run: run.result.ttft_first_ms),
        ("follow-up p50, ms", lambda run: run.result.ttft_follow_ms),
        ("kept, %", lambda run: run.result.kept * 100),
        ("cached, %", lambda run: run.result.cached_share * 100),
    ]
    return bars(
        "Policies compared",
        [name for name, _ in shown],
        {run.result.policy: [_alone(of(run)) for _, of in shown] for run in runs},
    )
