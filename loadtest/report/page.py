"""The page around plots and tables. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape

from router.replay.page import STYLE

MORE = """
svg .range { stroke: var(--ink); stroke-width: 1; opacity: .6; } td { font-variant-numeric: tabular-nums; }
table { margin: .6rem 0 1.6rem; } dl { display: grid; grid-template-columns: auto 1fr; gap: .2rem 1rem; }
dt { color: var(--dim); } dd { margin: 0; }
"""


def page(title: str, body: Iterable[str]) -> str:
    """One HTML document."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<style>{STYLE}{MORE}</style></head><body><h1>{escape(title)}</h1>{''.join(body)}</body></html>\n"
    )


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Names and values."""
    return f"<dl>{''.join(f'<dt>{escape(name)}</dt><dd>{escape(value)}</dd>' for name, value in pairs)}</dl>"


def figures(plots: Iterable[str]) -> str:
    """Plots side by side where there is room; empty ones are left out."""
    return f'<div class="plots">{"".join(f"<figure>{plot}</figure>" for plot in plots if plot)}</div>'


def table(rows: Sequence[Sequence[str]]) -> str:
    """A table; the first row is the heading."""
    head, *rest = rows
    lines = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rest)
    heads = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    return f'<div class="wide"><table><tr>{heads}</tr>{lines}</table></div>'


def from_markdown(text: str) -> str:
    """Paragraphs, bold titles and tables of Markdown, which is what the reports on the terminal consist of."""
    parts = []
    for block in re.split(r"\n{2,}", text.strip()):
        rows = block.splitlines()
        if rows[0].startswith("|"):
            cells = [[cell.strip() for cell in row.strip().strip("|").split("|")] for row in rows]
            parts.append(table([cells[0], *cells[2:]]))
        elif title := re.fullmatch(r"\*\*(.+)\*\*", block):
            parts.append(f"<h2>{escape(title[1])}</h2>")
        else:
            parts.append(f"<p>{escape(block)}</p>")
    return "".join(parts)
