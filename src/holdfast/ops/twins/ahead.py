"""Kernels are compiled before they are needed, many at once: one after the other they are most of a start."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock
from typing import Any

import torch
import triton
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.jit import JITFunction

EMPTY = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")


def compile_ahead(work: Callable[[], object]) -> None:
    """All kernels that `work` launches. They are not launched: what they would have filled is zero."""
    if triton.knobs.runtime.interpret:
        return
    pool = ThreadPoolExecutor(os.cpu_count())
    with pool, _parsed_in_turn(), triton.AsyncCompileMode(pool), _nothing_launched(), _Zeros():
        work()


@contextmanager
def _nothing_launched() -> Iterator[None]:
    run = JITFunction.run

    def only_compiled(kernel: Any, *args: Any, warmup: bool, **options: Any) -> Any:
        return run(kernel, *args, warmup=True, **options)

    JITFunction.run = only_compiled
    try:
        yield
    finally:
        JITFunction.run = run


@contextmanager
def _parsed_in_turn() -> Iterator[None]:
    """Python up to 3.11.8 and 3.12.2 fails where two threads build a syntax tree."""
    parse, turn = JITFunction.parse, Lock()

    def parsed(kernel: Any) -> Any:
        with turn:
            return parse(kernel)

    JITFunction.parse = parsed
    try:
        yield
    finally:
        JITFunction.parse = parse


class _Zeros(TorchDispatchMode):
    """Whatever is not filled holds zeros: operations of torch's may take it for indices."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in EMPTY:
            torch.Tensor.zero_(made)
        return made
