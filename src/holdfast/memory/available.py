"""How much memory there is to have."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import torch

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


def available_bytes(device: str) -> int | None:
    """Bytes that are free on this device now; None where that cannot be found out."""
    kind, _, number = device.partition(":")
    if kind == "cuda":
        there = int(number or 0) < torch.cuda.device_count()
        return torch.cuda.mem_get_info(torch.device(device))[0] if there else None
    return min((found for found in (_free_ram(), _left_in_container()) if found is not None), default=None)


def _free_ram() -> int | None:
    """What could be had without swapping; elsewhere than on Linux, half of what the machine has."""
    with contextlib.suppress(OSError, ValueError):
        for line in MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return None


def _left_in_container() -> int | None:
    """A container may be allowed less than the machine has; what it uses for files can be had back."""
    with contextlib.suppress(OSError, ValueError):
        most, used = (int((CGROUP / f"memory.{name}").read_text()) for name in ("max", "current"))
        lines = (line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
        return most - used + sum(int(line[1]) for line in lines if line[0] == "inactive_file")
    return None
