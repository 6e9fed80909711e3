"""The figures of all rounds, by system and by figure. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loadtest.bench.jobs import Result
from loadtest.bench.plan import HalfLoad, Measure, Paced, named
from loadtest.bench.stats import Spread, ratios, spread

MICRO = 1e6
# Nothing was charged to a system without processes of its own.
Figures = dict[str, float]


def figures(measure: Measure, result: Result) -> Figures:
    """What one result says, by the name of the figure; times in microseconds."""
    if result.error or not result.done:
        return {}
    if isinstance(measure, Paced):
        return _stream_figures(measure, result)
    size = named(measure.size)
    if isinstance(measure, HalfLoad):
        return {f"half_p50 {size}": result.p50 * MICRO, f"half_p99 {size}": result.p99 * MICRO}
    return _serial_figures(size, result) if measure.serial else _load_figures(size, result)


def _serial_figures(size: str, result: Result) -> Figures:
    found = {f"serial_p50 {size}": result.p50 * MICRO, f"serial_p99 {size}": result.p99 * MICRO}
    if result.cpu_seconds:
        found[f"serial_cpu_us {size}"] = result.cpu_seconds / result.done * MICRO
    return found


def _load_figures(size: str, result: Result) -> Figures:
    found = {
        f"rps {size}": result.done / result.seconds,
        f"load_us {size}": (result.worker_seconds + result.driver_seconds) / result.done * MICRO,
    }
    if result.cpu_seconds:
        found[f"cpu_us {size}"] = result.cpu_seconds / result.done * MICRO
        found[f"per_cpu_second {size}"] = result.done / result.cpu_seconds
    return found


def _stream_figures(measure: Paced, result: Result) -> Figures:
    found = {
        f"ttfb_p50 {measure.streams}": result.p50 * MICRO,
        f"ttfb_p99 {measure.streams}": result.p99 * MICRO,
        f"chunks_per_second {measure.streams}": result.done / result.seconds,
    }
    if result.cpu_seconds:
        found[f"chunk_us {measure.streams}"] = result.cpu_seconds / result.done * MICRO
    return found


class Samples:
    """One value per round, or None where there is none, for each system and figure."""

    def __init__(self, values: Mapping[str, Mapping[str, Sequence[float | None]]] | None = None) -> None:
        self._values: dict[str, dict[str, list[float | None]]] = {
            system: {name: list(rounds) for name, rounds in by_name.items()}
            for system, by_name in (values or {}).items()
        }

    def add(self, system: str, turn: int, found: Figures) -> None:
        """Keep the figures of a round; `turn` counts from 0."""
        by_name = self._values.setdefault(system, {})
        for name, value in found.items():
            rounds = by_name.setdefault(name, [])
            rounds += [None] * (turn + 1 - len(rounds))
            rounds[turn] = value

    def rounds(self, system: str, name: str) -> list[float | None]:
        """The values of a figure, round by round."""
        return self._values.get(system, {}).get(name, [])

    def spread(self, system: str, name: str) -> Spread | None:
        """Median and range of a figure."""
        return spread([value for value in self.rounds(system, name) if value is not None])

    def ratio(self, ours: str, theirs: str, name: str) -> Spread | None:
        """Ours by theirs, compared within each round."""
        return ratios(*_padded(self.rounds(ours, name), self.rounds(theirs, name)))

    def subtract(self, base: str, name: str, result: str) -> None:
        """Add a figure to every system: `name` less that of `base` in the same round."""
        below = self.rounds(base, name)
        for system in [system for system in self._values if system != base]:
            mine, theirs = _padded(self.rounds(system, name), below)
            for turn, (value, under) in enumerate(zip(mine, theirs, strict=True)):
                if value is not None and under is not None:
                    self.add(system, turn, {result: value - under})

    def as_dict(self) -> dict[str, dict[str, list[float | None]]]:
        """Everything, for a file."""
        return self._values


def _padded(first: list[float | None], second: list[float | None]) -> tuple[list[float | None], list[float | None]]:
    size = max(len(first), len(second))
    return first + [None] * (size - len(first)), second + [None] * (size - len(second))
