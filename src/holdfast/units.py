"""Bytes as people write them."""

from __future__ import annotations

import math
import re

MIB = 1 << 20

_UNITS = {"": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("KMGT", start=1)
    for suffix, base in (("iB", 1024), ("B", 1000))
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_bytes(size: int | str) -> int:
    """`80GiB`, `500MiB`, `1.5GB` or a number of bytes. Raises ValueError for anything else."""
    if isinstance(size, int) and not isinstance(size, bool):
        return size
    found = _SIZE.fullmatch(size) if isinstance(size, str) else None
    units = {unit.lower(): factor for unit, factor in _UNITS.items()}
    if found is None or found[2].lower() not in units:
        raise ValueError(
            f"{size!r} is not a size: write it like 80GiB, 500MiB, 1.5GB, or as a number of bytes"
        )
    return int(float(found[1]) * units[found[2].lower()]) if found[2] else int(float(found[1]))


def format_bytes(count: int) -> str:
    """Three or four digits and a binary unit: `49.1 MiB`."""
    if abs(count) < 1024:
        return f"{count} B"
    power = min(4, int(math.log2(abs(count)) // 10))
    value = count / 1024**power
    return f"{value:.{0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2}f} {' KMGT'[power]}iB"


def enough_bytes(count: int) -> str:
    """A size that can be given as an option, and is at least this many bytes."""
    return f"{-(-count // MIB)}MiB"
