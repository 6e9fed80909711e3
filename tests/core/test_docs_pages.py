"""The pages of documentation themselves: they are found, their links lead somewhere, and pictures need nothing else."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *DOCS.glob("*.md")])
OTHER_PAGES = sorted(path for part in ("config", "deploy", "loadtest", "tests") for path in (ROOT / part).rglob("*.md"))


def anchors(text: str) -> set[str]:
    """The names that a Markdown renderer gives to headings."""
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", [*PAGES, *OTHER_PAGES], ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if target.startswith("https://"):
            continue
        file, _, anchor = target.partition("#")
        destination = (path.parent / file).resolve() if file else path
        assert destination.is_file(), target
        if anchor:
            assert anchor in anchors(destination.read_text()), target


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_page_is_reachable_from_the_readme(path: Path) -> None:
    linked = re.findall(r"\]\((docs/[\w-]+\.md|CHANGELOG\.md)", (ROOT / "README.md").read_text())
    assert path.name == "README.md" or path.relative_to(ROOT).as_posix() in linked


@pytest.mark.parametrize("path", sorted((DOCS / "images").glob("*.svg")), ids=lambda path: path.name)
def test_pictures_say_what_they_show_and_need_nothing_from_elsewhere(path: Path) -> None:
    root = ElementTree.fromstring(path.read_text())
    names = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert {"title", "desc"} <= names
    assert not names & {"script", "image", "foreignObject", "use"}
    assert "prefers-color-scheme: dark" in path.read_text()
    assert not re.search(r"url\((?!#)", path.read_text())


def test_the_change_log_names_the_version() -> None:
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version
    assert f"## [{version[1]}]" in (ROOT / "CHANGELOG.md").read_text()
