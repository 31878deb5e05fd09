"""Processors that advertise AMX and kill the process that uses it, as some virtual machines do.

oneDNN chooses its bfloat16 kernels by the processor's flags, so on such a machine the first bfloat16 matrix
product ends in an illegal instruction. An environment variable holds oneDNN back. It is read once, when
oneDNN is first used: setting it after torch was imported is in time, after the first matrix product is not.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import os
import resource
import signal
import warnings
from pathlib import Path
from typing import NoReturn

ISA_LIMIT = "ONEDNN_MAX_CPU_ISA"
WITHOUT_AMX = "AVX512_CORE_BF16"
TRIAL_SECONDS = 20


@functools.cache
def ensure_safe_bf16() -> None:
    """Call once before bfloat16 runs on the CPU, before weights are loaded: the trial forks this process."""
    if not _advertises_amx() or _bf16_survives():
        return
    os.environ.setdefault(ISA_LIMIT, WITHOUT_AMX)
    if _bf16_survives():
        return
    _stop_using_onednn()
    warnings.warn(
        "bfloat16 will be slow: AMX does not work on this processor, and oneDNN was used before Holdfast "
        f"could hold it back, so it is switched off; start Python with {ISA_LIMIT}={WITHOUT_AMX} set",
        RuntimeWarning,
        stacklevel=2,
    )


def _advertises_amx() -> bool:
    try:
        return "amx_bf16" in Path("/proc/cpuinfo").read_text()
    except OSError:  # not Linux
        return False


def _bf16_survives() -> bool:
    """Multiply in a child, because this process would not live to tell.

    A forked child and not a new interpreter: it shares what oneDNN has already decided here, and takes
    milliseconds.
    """
    import torch  # noqa: F401 (the child needs it, and importing there would be slow)

    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads: the child needs none of them
        child = os.fork()
    if child == 0:
        _multiply_and_exit(writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        survived = answer.read() == b"alive"
    with contextlib.suppress(ChildProcessError):  # reaped already, where SIGCHLD is ignored
        os.waitpid(child, 0)
    return survived


def _multiply_and_exit(writing: int) -> NoReturn:
    import torch

    try:
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for trap in (signal.SIGILL, signal.SIGALRM):
            signal.signal(trap, signal.SIG_DFL)
        signal.alarm(TRIAL_SECONDS)
        torch.set_num_threads(1)  # a forked child has no thread pool
        ones = torch.ones(64, 64, dtype=torch.bfloat16)
        (ones @ ones).sum().item()
        os.write(writing, b"alive")
    finally:
        os._exit(0)


def _stop_using_onednn() -> None:
    import torch

    torch.backends.mkldnn.set_flags(_enabled=False)
