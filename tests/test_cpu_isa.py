"""bfloat16 on a CPU that advertises AMX: nothing may die, whenever Holdfast is asked."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from holdfast import cpu_isa

MULTIPLY = """
    import torch
    for size in (16, 64, 256):
        x = torch.ones(size, 64, dtype=torch.bfloat16)
        assert (x @ x.T).eq(64).all(), size
        torch.nn.functional.linear(x, x)
    q = torch.ones(1, 2, 128, 64, dtype=torch.bfloat16)
    torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
"""
FLOAT32_PRODUCT = "import torch; torch.nn.functional.linear(torch.ones(300, 300), torch.ones(300, 300))"
ENSURE = "from holdfast.cpu_isa import ensure_safe_bf16; ensure_safe_bf16()"


def python(*parts: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != cpu_isa.ISA_LIMIT}
    source = "\n".join(textwrap.dedent(part) for part in parts)
    return subprocess.run([sys.executable, "-c", source], env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("before", ["", "import torch"], ids=["first", "torch imported"])
def test_bf16_runs(before: str) -> None:
    done = python(before, ENSURE, MULTIPLY)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_bf16_runs_even_when_asked_too_late() -> None:
    traps = python(MULTIPLY).returncode < 0
    done = python(FLOAT32_PRODUCT, ENSURE, MULTIPLY)
    assert done.returncode == 0, done.stderr
    warned = f"{cpu_isa.ISA_LIMIT}={cpu_isa.WITHOUT_AMX}" in done.stderr
    assert warned == traps


@pytest.fixture
def decide(monkeypatch: pytest.MonkeyPatch):
    """Run the decision with given facts: does the processor advertise AMX, and how do the trials end?"""

    def run(advertised: bool, trials: list[bool], limit: str | None = None) -> tuple[str | None, bool]:
        onednn_off: list[bool] = []
        monkeypatch.delenv(cpu_isa.ISA_LIMIT, raising=False)
        if limit is not None:
            monkeypatch.setenv(cpu_isa.ISA_LIMIT, limit)
        monkeypatch.setattr(cpu_isa, "_advertises_amx", lambda: advertised)
        monkeypatch.setattr(cpu_isa, "_bf16_survives", lambda: trials.pop(0))
        monkeypatch.setattr(cpu_isa, "_stop_using_onednn", lambda: onednn_off.append(True))
        cpu_isa.ensure_safe_bf16.__wrapped__()
        return os.environ.get(cpu_isa.ISA_LIMIT), bool(onednn_off)

    return run


def test_nothing_is_tried_or_set_where_there_is_no_amx(decide) -> None:
    assert decide(advertised=False, trials=[]) == (None, False)


def test_nothing_is_set_where_amx_works(decide) -> None:
    assert decide(advertised=True, trials=[True]) == (None, False)


def test_amx_is_held_back_where_it_traps(decide) -> None:
    assert decide(advertised=True, trials=[False, True]) == (cpu_isa.WITHOUT_AMX, False)


def test_too_late_switches_onednn_off_and_says_so(decide) -> None:
    with pytest.warns(RuntimeWarning, match=cpu_isa.ISA_LIMIT):
        assert decide(advertised=True, trials=[False, False]) == (cpu_isa.WITHOUT_AMX, True)


def test_a_users_own_limit_is_kept(decide) -> None:
    assert decide(advertised=True, trials=[True], limit="AVX2") == ("AVX2", False)
