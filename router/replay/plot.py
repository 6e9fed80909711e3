"""Small plots as SVG text: lines over a logarithmic scale, and bars."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from router.replay.measure import Estimate

WIDTH, HEIGHT = 540, 360
LEFT, RIGHT, TOP, BOTTOM = 48, 130, 30, 34
LABEL_STEP = 14


def colour(position: int) -> str:
    """Hues of which neighbours lie far apart (the golden angle), legible on light and dark paper."""
    return f"hsl({position * 137 % 360} 65% 48%)"


def lines(title: str, series: Mapping[str, Sequence[tuple[float, Estimate]]]) -> str:
    """One line for each name over (x, estimate), with bars of one standard error; y is logarithmic."""
    series = {name: points for name, points in series.items() if points}
    values = [max(estimate.mean, 1e-6) for points in series.values() for _, estimate in points]
    places = [x for points in series.values() for x, _ in points]
    if not values:
        return ""
    x_scale = Scale(min(places), max(places), LEFT, WIDTH - RIGHT)
    low, high = math.log10(min(values)), math.log10(max(values))
    y_scale = Scale(low, high if high > low else low + 1, HEIGHT - BOTTOM, TOP)
    parts = [_axis(sorted(set(places)), x_scale), *_levels(low, high, y_scale)]
    ends: list[tuple[float, str, str]] = []
    for position, (name, points) in enumerate(series.items()):
        stroke = colour(position)
        spots = [(x_scale(x), y_scale(math.log10(max(estimate.mean, 1e-6)))) for x, estimate in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        parts.append(f'<polyline fill="none" stroke="{stroke}" stroke-width="1.8" points="{path}"/>')
        for (x, y), (place, estimate) in zip(spots, points, strict=True):
            reach = abs(y_scale(math.log10(max(estimate.mean + estimate.error, 1e-6))) - y)
            tip = f"{name}, {place:g}: {estimate.mean:.3g} ± {estimate.error:.2g}"
            parts.append(
                f'<g><title>{escape(tip)}</title><path stroke="{stroke}" d="M{x:.1f} {y - reach:.1f}V{y + reach:.1f}"/>'
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{stroke}"/></g>'
            )
        ends.append((spots[-1][1], name, stroke))
    parts.extend(_labels(ends))
    return _svg(title, "".join(parts))


def bars(title: str, values: Mapping[str, Estimate]) -> str:
    """One bar for each name, from 0 to the largest."""
    if not values:
        return ""
    top = max(estimate.mean for estimate in values.values()) or 1.0
    row = (HEIGHT - TOP - 10) / len(values)
    scale = Scale(0.0, top, RIGHT, WIDTH - LEFT)
    parts = []
    for position, (name, estimate) in enumerate(values.items()):
        y = TOP + position * row
        width = scale(max(0.0, estimate.mean)) - RIGHT
        middle = y + row / 2 + 4
        parts.append(
            f'<text x="{RIGHT - 6}" y="{middle:.1f}" text-anchor="end">{escape(name)}</text>'
            f'<rect x="{RIGHT}" y="{y + row * 0.15:.1f}" width="{width:.1f}" height="{row * 0.7:.1f}" '
            f'fill="{colour(position)}"/>'
            f'<text class="dim" x="{RIGHT + width + 5:.1f}" y="{middle:.1f}">{estimate.mean:.3f}</text>'
        )
    return _svg(title, "".join(parts))


class Scale:
    """A linear map of one interval to another."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self._low = low
        self._start = start
        self._slope = (end - start) / ((high - low) or 1.0)

    def __call__(self, value: float) -> float:
        return self._start + (value - self._low) * self._slope


def _axis(places: Sequence[float], scale: Scale) -> str:
    base = HEIGHT - BOTTOM
    marks = "".join(
        f'<text class="dim" x="{scale(place):.1f}" y="{base + 18}" text-anchor="middle">{place:.0%}</text>'
        for place in places
    )
    return f'<path class="axis" d="M{LEFT} {base}H{WIDTH - RIGHT}"/>{marks}'


def _levels(low: float, high: float, scale: Scale) -> list[str]:
    """Horizontal lines at 1, 2 and 5 times powers of ten."""
    parts = []
    for power in range(math.floor(low), math.ceil(high) + 1):
        for step in (1, 2, 5):
            level = math.log10(step) + power
            if low <= level <= high:
                y = scale(level)
                parts.append(
                    f'<path class="axis" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>'
                    f'<text class="dim" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{step * 10.0**power:g}</text>'
                )
    return parts


def _labels(ends: Sequence[tuple[float, str, str]]) -> list[str]:
    """Names at the ends of their lines, moved apart where they would overlap."""
    parts = []
    lowest = TOP - LABEL_STEP / 2
    room = HEIGHT - BOTTOM - len(ends) * LABEL_STEP
    for position, (y, name, stroke) in enumerate(sorted(ends)):
        place = max(lowest + LABEL_STEP, min(y + 4, room + (position + 1) * LABEL_STEP))
        lowest = place
        parts.append(f'<text x="{WIDTH - RIGHT + 10}" y="{place:.1f}" style="fill:{stroke}">{escape(name)}</text>')
    return parts


def _svg(title: str, inside: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img">'
        f'<title>{escape(title)}</title><text x="{LEFT}" y="16" font-weight="600">{escape(title)}</text>{inside}</svg>'
    )
