"""Plots as SVG text: lines over a common axis, and groups of bars with their ranges. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import NamedTuple

from router.replay.plot import Scale
from router.replay.plot import colour as any_colour

WIDTH, HEIGHT = 560, 300
LEFT, RIGHT, TOP, BOTTOM = 60, 16, 34, 40
LEGEND_ROW = 18
# Values this far apart on one axis are only told apart on a logarithmic one.
FAR_APART = 30.0
# Told apart by people who see red and green alike, on light and on dark paper.
COLOURS = ("#14a37f", "#e39a1c", "#4484e4", "#9868d0", "#d64f57", "#7d8ca3")
LETTER = 7.2
MOST_PLACES = 8


def colour(position: int) -> str:
    """The colour of the n-th name."""
    return COLOURS[position] if position < len(COLOURS) else any_colour(position)


class Bar(NamedTuple):
    """A value and the range of its rounds."""

    value: float
    least: float
    greatest: float


Point = tuple[float, float]


def lines(title: str, series: Mapping[str, Sequence[Point]], x_label: str, *, dots: bool = False) -> str:
    """One line for each name over (x, y), y from 0; "" where there is no point."""
    series = {name: points for name, points in series.items() if points}
    if not series:
        return ""
    everything = [point for points in series.values() for point in points]
    places = _places([px for px, _ in everything])
    x = Scale(places[0], places[-1], LEFT, WIDTH - RIGHT - LETTER)
    top = roof(max(py for _, py in everything))
    y = Scale(0.0, top, HEIGHT - BOTTOM, TOP)
    parts = [*_levels([top * part / 4 for part in range(5)], y), *_under(places, x)]
    for position, points in enumerate(series.values()):
        path = " ".join(f"{x(px):.1f},{y(py):.1f}" for px, py in points)
        parts.append(f'<polyline fill="none" stroke="{colour(position)}" stroke-width="2" points="{path}"/>')
        if dots:
            parts += [
                f'<circle cx="{x(px):.1f}" cy="{y(py):.1f}" r="3" fill="{colour(position)}"/>' for px, py in points
            ]
    parts.append(f'<text class="dim" x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end">{escape(x_label)}</text>')
    return _framed(title, list(series), parts)


def bars(title: str, groups: Sequence[str], series: Mapping[str, Sequence[Bar | None]]) -> str:
    """Bars by name within each group, with lines from the least to the greatest round; "" where there is no value."""
    known = [bar for found in series.values() for bar in found if bar is not None]
    if not known:
        return ""
    scale = _height(known)
    room = (WIDTH - RIGHT - LEFT) / len(groups)
    width = 0.84 * room / len(series)
    parts = [*scale.levels()]
    for place, group in enumerate(groups):
        middle = LEFT + (place + 0.5) * room
        parts.append(
            f'<text class="dim" x="{middle:.1f}" y="{HEIGHT - 22}" text-anchor="middle">{escape(group)}</text>'
        )
        for position, (name, found) in enumerate(series.items()):
            bar = found[place]
            if bar is not None:
                left = middle + (position - len(series) / 2) * width
                parts.append(_bar(bar, left, width * 0.92, scale, colour(position), f"{name}, {group}"))
    return _framed(title, list(series), parts)


def _bar(bar: Bar, left: float, width: float, scale: _Height, fill: str, name: str) -> str:
    top, base, middle = scale(bar.value), scale.base, left + width / 2
    said = f"{name}: {_number(bar.value)} ({_number(bar.least)} to {_number(bar.greatest)})"
    return (
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{max(0.5, base - top):.1f}" fill="{fill}">'
        f"<title>{escape(said)}</title></rect>"
        f'<path class="range" d="M{middle:.1f} {scale(bar.least):.1f}V{scale(bar.greatest):.1f}"/>'
    )


class _Height:
    """Values to heights, from 0 or, where they lie far apart, on a logarithmic scale."""

    base = HEIGHT - BOTTOM

    def __init__(self, low: float, high: float, *, logarithmic: bool) -> None:
        self._logarithmic = logarithmic
        self._low, self._high = low, high
        self._scale = Scale(self._of(low), self._of(high), self.base, TOP)

    def _of(self, value: float) -> float:
        return math.log10(max(value, self._low)) if self._logarithmic else value

    def __call__(self, value: float) -> float:
        return max(TOP, min(self.base, self._scale(self._of(value))))

    def levels(self) -> Iterator[str]:
        """Lines at round values."""
        if not self._logarithmic:
            yield from _levels([self._high * part / 4 for part in range(5)], self)
            return
        yield f'<text class="dim" x="{WIDTH - RIGHT}" y="18" text-anchor="end">logarithmic</text>'
        powers = range(round(math.log10(self._low)), round(math.log10(self._high)) + 1)
        yield from _levels([10.0**power for power in powers], self)


def _height(known: Sequence[Bar]) -> _Height:
    values = [bar.value for bar in known if bar.value > 0]
    greatest = max([bar.greatest for bar in known], default=1.0)
    if values and max(values) > FAR_APART * min(values):
        low = 10.0 ** math.floor(math.log10(min(values)))
        return _Height(low, 10.0 ** math.ceil(math.log10(greatest)), logarithmic=True)
    return _Height(0.0, roof(greatest), logarithmic=False)


def roof(value: float) -> float:
    """The next of 1, 2, 4, 5, 8 times a power of ten, so that quarters of it are round."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 4, 5, 8, 10) if step * power >= value * 0.9999)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.4g}"


def _levels(values: Sequence[float], scale: Scale | _Height) -> Iterator[str]:
    for value in values:
        y = scale(value)
        yield f'<path class="axis" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>'
        yield f'<text class="dim" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_number(value)}</text>'


def _places(values: Sequence[float]) -> list[float]:
    """What to name under the axis: the values themselves if they are few, else quarters of a round one above them."""
    distinct = sorted(set(values))
    if 1 < len(distinct) <= MOST_PLACES:
        return distinct
    top = roof(distinct[-1])
    return [top * part / 4 for part in range(5)]


def _under(places: Sequence[float], scale: Scale) -> Iterator[str]:
    for value in places:
        yield f'<text class="dim" x="{scale(value):.1f}" y="{HEIGHT - 22}" text-anchor="middle">{_number(value)}</text>'


def _framed(title: str, names: Sequence[str], parts: Sequence[str]) -> str:
    """The plot with its title above and its legend below, as many names in a row as fit."""
    legend = []
    x, row = float(LEFT), 0
    for position, name in enumerate(names):
        width = 18 + LETTER * len(name) + 16
        if x > LEFT and x + width > WIDTH:
            x, row = float(LEFT), row + 1
        y = HEIGHT + row * LEGEND_ROW
        legend.append(
            f'<rect x="{x:.0f}" y="{y}" width="11" height="11" rx="2" fill="{colour(position)}"/>'
            f'<text x="{x + 18:.0f}" y="{y + 10}">{escape(name)}</text>'
        )
        x += width
    height = HEIGHT + (row + 1) * LEGEND_ROW + 6
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img">'
        f'<title>{escape(title)}</title><text x="{LEFT}" y="18" font-weight="600">{escape(title)}</text>'
        f"{''.join(parts)}{''.join(legend)}</svg>"
    )
