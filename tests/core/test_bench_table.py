"""The plan, the report's tables, its place in the documentation."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.bench import publish, table
from loadtest.bench.peers import SGLANG, command, nginx_config
from loadtest.bench.plan import FULL, QUICK, Load, Plan, another_round, named, order, warm
from loadtest.bench.samples import Samples
from loadtest.bench.stats import Spread
from loadtest.bench.systems import Cores
from loadtest.bench.targets import TARGETS, judge

TITLES = {"direct": "direct", "sglang": "a peer", "ours": "ours"}
SAMPLES = Samples(
    {
        "direct": {"rps 8 KB": [100.0]},
        "sglang": {"cpu_us 8 KB": [100.0, 110.0], "rps 8 KB": [50.0]},
        "ours": {"cpu_us 8 KB": [50.0, 66.0], "rps 8 KB": [60.0]},
    }
)


@pytest.mark.parametrize(("value", "text"), [(1234.5, "1,234"), (123.4, "123"), (12.34, "12.3"), (1.234, "1.23")])
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert table.number(value) == text


def test_a_cell_shows_the_range_where_there_is_one() -> None:
    assert table.cell(Spread(2.0, 1.0, 3.0, 3)) == "2.00 (1.00 - 3.00)"
    assert table.cell(Spread(2.0, 2.0, 2.0, 1)) == "2.00"
    assert table.cell(None) == "-"


def test_a_table_leaves_out_what_nobody_has() -> None:
    shown = table.section(SAMPLES, TITLES, table.CPU).splitlines()
    assert shown == [
        "|  | 8 KB |",
        "|---|---|",
        "| a peer | 105 (100 - 110) |",
        "| ours | 58.0 (50.0 - 66.0) |",
    ]
    assert table.section(SAMPLES, TITLES, table.STREAMS) == ""


def test_a_report_has_facts_verdicts_and_tables() -> None:
    text = table.report(SAMPLES, TITLES, judge(SAMPLES, "ours"), {"cpu": "2 cores", "kernel": "6"})
    assert text.startswith("cpu 2 cores; kernel 6.\n")
    assert "| cpu_us 8 KB | a peer | 0.55 (0.50 - 0.60) | at most 0.8 | yes |" in text
    assert "| direct | 100 |" in text


def test_every_target_is_a_figure_that_the_full_plan_measures() -> None:
    shown = {name for _, columns in table.SECTIONS for _, name in columns}
    assert {target.figure for target in TARGETS} <= shown


def test_the_text_goes_between_the_markers() -> None:
    page = f"before\n{publish.BEGIN}\nold\n{publish.END}\nafter\n"
    once = publish.replaced(page, "new")
    assert once == f"before\n{publish.BEGIN}\n\nnew\n\n{publish.END}\nafter\n"
    assert publish.replaced(once, "new") == once
    with pytest.raises(ValueError, match="bench: begin"):
        publish.replaced("no markers", "new")


def test_the_documentation_shows_the_run(tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    publish.write_json(results / "result.json", {"a": [1.5, None]})
    (results / publish.PICTURE).write_bytes(b"png")
    page = tmp_path / "docs" / "performance.md"
    page.parent.mkdir()
    page.write_text(f"# T\n{publish.BEGIN}{publish.END}\n")
    publish.to_documentation(tmp_path, results, "figures")
    assert "figures\n\n![" in page.read_text()
    assert (tmp_path / "docs/images" / publish.PICTURE).read_bytes() == b"png"
    assert (tmp_path / "docs/images/performance.json").exists()


# -- the plan ----------------------------------------------------------------------------------------------


def test_rounds_end_in_time() -> None:
    plan = Plan((), rounds=5, minutes=10)
    assert another_round(0, plan, 0.0)
    assert another_round(4, plan, 479.0)
    assert not another_round(4, plan, 481.0)
    assert not another_round(5, plan, 0.0)
    assert not another_round(1, plan, 301.0)


def test_each_system_is_first_once() -> None:
    names = ["a", "b", "c"]
    assert [order(names, turn)[0] for turn in range(4)] == ["a", "b", "c", "a"]
    assert all(sorted(order(names, turn)) == names for turn in range(4))


def test_the_half_load_follows_the_saturated_load_that_it_is_half_of() -> None:
    for plan in (FULL, QUICK):
        labels = [measure.label for measure in plan.measures]
        assert labels.index("saturated 8 KB") < labels.index("half load 8 KB")
        assert len(labels) == len(set(labels))


def test_every_connection_is_warm() -> None:
    assert warm(Load(512, 4000)) == 400
    assert warm(Load(512, 20)) == 16
    assert [named(size) for size in (512, 8192, 1024)] == ["0.5 KB", "8 KB", "1 KB"]


def test_proxies_and_load_share_no_core_where_there_are_two() -> None:
    assert Cores.split([0, 1], pin=True) == Cores(frozenset({0}), frozenset({1}))
    assert Cores.split([2, 3, 5], pin=True) == Cores(frozenset({2}), frozenset({3, 5}))
    assert Cores.split([0], pin=True) == Cores(frozenset({0}), frozenset({0}))
    assert Cores.split([0, 1], pin=False) == Cores(frozenset({0, 1}), frozenset({0, 1}))


def test_peers_are_started_with_the_policy_and_the_workers() -> None:
    words = command(Path("py"), SGLANG, "cache_aware", 1, 2, ["http://a", "http://b"])
    assert words[:3] == ["py", "-m", "sglang_router.launch_router"]
    assert words[words.index("--policy") + 1] == "cache_aware"
    assert words[-3:] == ["--worker-urls", "http://a", "http://b"]


def test_nginx_stands_before_every_worker() -> None:
    text = nginx_config(80, [81, 82])
    assert "server 127.0.0.1:81; server 127.0.0.1:82; keepalive" in text
    assert "listen 127.0.0.1:80;" in text
    assert text.count("{") == text.count("}")
