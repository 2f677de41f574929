"""Refuses requests that do not fit into memory before anything is allocated for them."""

from __future__ import annotations

import math
import os
from pathlib import Path

_MEMINFO, _LIMIT = Path("/proc/meminfo"), Path("/sys/fs/cgroup/memory.max")


def available() -> float:
    """Bytes that this process can still allocate; infinite if the system does not tell."""
    found = float("inf")
    if _MEMINFO.exists():
        lines = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines() if ":" in line)
        found = sum(1024.0 * int(lines.get(name, "0 kB").split()[0]) for name in ("MemAvailable", "SwapFree"))
    elif "SC_PHYS_PAGES" in os.sysconf_names:
        found = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    if _LIMIT.exists() and _LIMIT.read_text().strip().isdigit():  # the limit of a container
        found = min(found, float(_LIMIT.read_text()))
    return found


def check_memory(what: str, needed: float, remedy: str) -> None:
    """Raises a ValueError if `what` needs more bytes than are available."""
    there = available()
    if needed > there:
        raise ValueError(f"{what} would need {as_text(needed)} of memory, {as_text(there)} are free; {remedy}")


def as_text(size: float) -> str:
    """A number of bytes in readable units."""
    units = ("bytes", "kB", "MB", "GB", "TB", "PB")
    power = min(int(math.log10(max(size, 1.0)) // 3), len(units) - 1)
    return f"{size / 1000.0**power:.3g} {units[power]}"
