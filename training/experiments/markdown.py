"""Tables and numbers as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def markdown_row(entries: Sequence[Any]) -> str:
    return "| " + " | ".join(map(str, entries)) + " |"


def short(value: float | None) -> str:
    """Three digits, as the paper prints them."""
    return "–" if value is None else f"{value:.2e}"
