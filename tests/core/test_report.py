"""Reports of loads: plots that hold their data, pages that need nothing from elsewhere, progress that can be read."""

from __future__ import annotations

import io
import re
from xml.etree import ElementTree

import pytest

from loadtest.bench.page import as_html as bench_page
from loadtest.bench.samples import Samples
from loadtest.report.page import from_markdown, page, table
from loadtest.report.plots import COLOURS, Bar, bars, colour, lines, roof
from loadtest.report.progress import ELSEWHERE_SECONDS, Progress
from loadtest.spread import Load, Played, Turn, judge
from loadtest.spread_page import as_html

SVG = "{http://www.w3.org/2000/svg}"


def drawn(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1))


def heights(svg: str) -> list[float]:
    """Of the bars, from left to right; those of the legend have rounded corners."""
    found = [rect for rect in drawn(svg).iter(f"{SVG}rect") if rect.get("rx") is None]
    return [float(rect.attrib["height"]) for rect in sorted(found, key=lambda rect: float(rect.attrib["x"]))]


def alone(value: float) -> Bar:
    return Bar(value, value, value)


def test_bars_are_as_high_as_their_values() -> None:
    one, two, four = heights(bars("t", ["a", "b", "c"], {"s": [alone(1), alone(2), alone(4)]}))
    assert two == pytest.approx(2 * one, abs=0.2)
    assert four == pytest.approx(4 * one, abs=0.4)


def test_values_far_apart_are_drawn_by_their_magnitude() -> None:
    one, ten, thousand = heights(bars("t", ["a", "b", "c"], {"s": [alone(1), alone(10), alone(1000)]}))
    assert one < ten < thousand
    assert thousand == pytest.approx(3 * ten, rel=0.05)


def test_a_missing_value_leaves_its_place_empty() -> None:
    svg = bars("t", ["a", "b"], {"s": [None, alone(2)], "u": [alone(1), None]})
    assert len(heights(svg)) == 2
    assert bars("t", ["a"], {"s": [None]}) == ""
    assert bars("t", [], {}) == ""


def test_lines_pass_through_their_points() -> None:
    svg = lines("t", {"s": [(1, 10), (2, 20), (3, 40)], "absent": []}, "turn", dots=True)
    (path,) = drawn(svg).iter(f"{SVG}polyline")
    (_, first), (_, second), (_, third) = [map(float, point.split(",")) for point in path.attrib["points"].split()]
    assert first - third == pytest.approx(3 * (first - second), abs=0.5)
    assert "absent" not in svg
    assert lines("t", {"s": []}, "turn") == ""


def test_a_line_of_one_point_can_be_drawn() -> None:
    assert "<circle" in lines("t", {"s": [(0.0, 0.0)]}, "turn", dots=True)


@pytest.mark.parametrize(("value", "expected"), [(0, 1), (0.03, 0.04), (1, 1), (3, 4), (6, 8), (99, 100), (100, 100)])
def test_axes_end_at_round_values(value: float, expected: float) -> None:
    assert roof(value) == pytest.approx(expected)


def test_every_name_has_a_colour_of_its_own() -> None:
    count = len(COLOURS) + 6
    assert len({colour(position) for position in range(count)}) == count


def test_what_comes_from_outside_is_escaped() -> None:
    name = "<b>&\"'"
    for made in (bars(name, [name], {name: [alone(1)]}), lines(name, {name: [(0, 1), (1, 1)]}, name), table([[name]])):
        assert "<b>" not in made
        assert "&lt;b&gt;" in made


def test_markdown_reports_become_tables() -> None:
    html = from_markdown("some & facts.\n\n**A title**\n\n| a | b |\n|---|---|\n| 1 | <2> |")
    assert html.startswith("<p>some &amp; facts.</p><h2>A title</h2>")
    assert '<th scope="col">a</th>' in html
    assert "<td>&lt;2&gt;</td>" in html
    assert "---" not in html


def played(policy: str, workers: int = 2) -> Played:
    turns = [
        [
            Turn(f"w{(number + (turn if policy == 'blind' else 0)) % workers}", 0.1 / turn, 100 * turn, 50, turn, "hit")
            for turn in (1, 2)
        ]
        for number in range(6)
    ]
    return Played(judge(policy, turns, Load(conversations=6), workers), turns)


def self_contained(html: str) -> bool:
    return not re.search(r"<(?:script|img|iframe)\b|\b(?:src|href)=\"(?!data:,)|url\(|@import|https?://", html)


def test_the_page_of_many_conversations_has_every_plot_and_the_table() -> None:
    html = as_html([played("kept"), played("blind")], Load(conversations=6))
    for title in (
        "by turn",
        "from cache over time",
        "Turns on each worker",
        "Policies compared",
        "Decisions by reason",
    ):
        assert title in html
    assert html.count("<svg") == 7
    assert "<td>kept</td><td>100.0%</td>" in html
    assert self_contained(html)


def test_a_run_in_which_everything_failed_has_a_page_too() -> None:
    nothing = Played(judge("none", [[], []], Load(conversations=2), 2), [[], []])
    assert "<td>none</td>" in as_html([nothing], Load(conversations=2))


def test_the_page_of_a_benchmark_shows_its_figures_and_its_report() -> None:
    samples = Samples()
    samples.add("ours", 0, {"cpu_us 8 KB": 120.0, "rps 8 KB": 5_000.0})
    samples.add("ours", 1, {"cpu_us 8 KB": 140.0})
    html = bench_page(samples, {"direct": "none", "ours": "prefix-router"}, "**Title**\n\n| a |\n|---|\n| 1 |")
    assert "prefix-router, 8 KB: 130 (120 to 140)" in html
    assert html.count("<svg") == 2
    assert "<h2>Title</h2>" in html
    assert self_contained(html)


def test_a_page_is_one_document() -> None:
    html = page("A <title>", ["<p>x</p>"])
    assert html.count("<html") == html.count("</html>") == 1
    assert "A &lt;title&gt;" in html


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_says_how_much_is_left() -> None:
    now = [0.0]
    out = io.StringIO()
    with Progress("slack", 4, "conversations", stream=out, clock=lambda: now[0]) as progress:
        now[0] = ELSEWHERE_SECONDS + 20
        progress.step()
        progress.step()
    assert out.getvalue() == "slack [######..................] 1 of 4 conversations, about 2 min left\n"
    assert progress.line().endswith("2 of 4 conversations, about 30 s left")


def test_on_a_terminal_the_line_is_rewritten_and_removed() -> None:
    now = [0.0]
    out = Terminal()
    with Progress("", 2, stream=out, clock=lambda: now[0]) as progress:
        for _ in range(2):
            now[0] += 1
            progress.step()
    assert out.getvalue().count("\r\x1b[K") == 3
    assert "\n" not in out.getvalue()
