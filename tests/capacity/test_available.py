from __future__ import annotations

from pathlib import Path

import pytest
import torch

from holdfast.memory import available
from holdfast.memory.available import available_bytes

GIB = 1 << 30


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 20 of 32 GiB free, and no container."""
    (tmp_path / "meminfo").write_text(f"MemTotal: {32 * GIB >> 10} kB\nMemAvailable: {20 * GIB >> 10} kB\n")
    monkeypatch.setattr(available, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(available, "CGROUP", tmp_path)
    return tmp_path


def contain(machine: Path, most: str) -> None:
    (machine / "memory.max").write_text(most)
    (machine / "memory.current").write_text(str(5 * GIB))
    (machine / "memory.stat").write_text(f"anon {GIB}\ninactive_file {2 * GIB}\nactive_file {GIB}\n")


def test_a_machine(machine: Path) -> None:
    assert available_bytes("cpu") == 20 * GIB


def test_a_container_that_may_have_less(machine: Path) -> None:
    contain(machine, str(8 * GIB))
    assert available_bytes("cpu") == 5 * GIB


def test_a_container_that_may_have_more(machine: Path) -> None:
    contain(machine, str(80 * GIB))
    assert available_bytes("cpu") == 20 * GIB


def test_a_container_without_a_limit(machine: Path) -> None:
    contain(machine, "max")
    assert available_bytes("cpu") == 20 * GIB


def test_no_such_files(machine: Path) -> None:
    (machine / "meminfo").unlink()
    found = available_bytes("cpu")
    assert found is not None and found > 0


def test_a_gpu_that_is_not_there() -> None:
    assert available_bytes(f"cuda:{torch.cuda.device_count()}") is None


@pytest.mark.gpu
def test_a_gpu() -> None:
    free, total = torch.cuda.mem_get_info()
    found = available_bytes("cuda")
    assert found is not None and 0 < found <= total and abs(found - free) < GIB
