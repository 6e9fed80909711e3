"""Where a run's results go: a directory of its own, and the documentation."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

BEGIN = "<!-- bench: begin -->"
END = "<!-- bench: end -->"
PICTURE = "performance.png"


def replaced(page: str, text: str, first: str = BEGIN, last: str = END) -> str:
    """The page with new text between two markers; raises ValueError when it has not both."""
    before, begin, rest = page.partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        raise ValueError(f"no {first} ... {last} in the page")
    return f"{before}{begin}\n\n{text}\n\n{end}{after}"


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """A JSON file that people can read too."""
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def to_documentation(root: Path, results: Path, text: str) -> None:
    """Show the latest run in docs/performance.md, with its picture and its data."""
    page = root / "docs" / "performance.md"
    images = root / "docs" / "images"
    images.mkdir(exist_ok=True)
    picture = results / PICTURE
    if picture.exists():
        shutil.copy(picture, images / PICTURE)
        text += f"\n\n![CPU time per request and chunk, and added latency](images/{PICTURE})"
    shutil.copy(results / "result.json", images / "performance.json")
    page.write_text(replaced(page.read_text(), text))
