"""CUDA graphs where there is no CUDA: what is recorded is done again on replay, at the same addresses.

A recording notes every operation and every launch of a kernel, with the tensors it was given and those it made. What
it made is poisoned when it ends, as a real one has not computed anything yet. Asking the device for a value is an
error, as it is while a real one is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from holdfast.executor.readback import Fetch, Tray

WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "item", "is_nonzero")
"""Operations whose result, or its shape, the host would have to wait for."""


class FakeGraph:
    made: list[FakeGraph]

    def __init__(self) -> None:
        self.work: list[Callable[[], object]] = []
        self.pool_of: FakeGraph | None = None
        self.replays = 0
        self.made.append(self)

    def pool(self) -> FakeGraph:
        return self.pool_of or self

    def replay(self) -> None:
        self.replays += 1
        for again in self.work:
            again()


class _Recorder(TorchDispatchMode):
    def __init__(self, graph: FakeGraph) -> None:
        super().__init__()
        self.graph = graph
        self.made: dict[int, torch.UntypedStorage] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.overloadpacket.__name__ in WAITS:
            raise RuntimeError(f"{func} waits for the device, which a recording cannot")
        results = func(*args, **kwargs)
        given = {_address(x) for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        kept = [x for x in tree_leaves(results) if isinstance(x, Tensor)]
        self.made.update((_address(x), x.untyped_storage()) for x in kept if _address(x) not in given)

        def again() -> None:
            for new, old in zip(tree_leaves(func(*args, **kwargs)), kept, strict=True):
                if _address(new) != _address(old):
                    old.copy_(new)

        self.graph.work.append(again)
        return results

    def poison(self) -> None:
        for storage in self.made.values():
            storage.fill_(0xFF)  # NaN, or minus one


def _address(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


@pytest.fixture
def fake_graphs(monkeypatch: pytest.MonkeyPatch) -> list[FakeGraph]:
    """All graphs that are made, in order."""
    recorders: list[_Recorder] = []

    @contextmanager
    def graph(made: FakeGraph, pool: FakeGraph | None = None) -> Iterator[None]:
        made.pool_of = pool
        recorders.append(_Recorder(made))
        with recorders[-1]:
            yield
        recorders.pop().poison()

    FakeGraph.made = []
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    _note_launches(monkeypatch, recorders)
    _copy_what_is_read(monkeypatch)
    return FakeGraph.made


def _copy_what_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """As from a GPU: the next replay overwrites it."""
    made, take = Fetch.__init__, Tray.take
    monkeypatch.setattr(Fetch, "__init__", lambda self, *told: made(self, *(x.clone() for x in told)))
    monkeypatch.setattr(Tray, "take", lambda self, told, step: take(self, told.clone(), step))


def _note_launches(monkeypatch: pytest.MonkeyPatch, recorders: list[_Recorder]) -> None:
    """The interpreter's kernels write to memory, past torch's operations."""
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    run = interpreter.InterpretedFunction.run

    def launch(kernel: Any, *args: Any, **options: Any) -> None:
        with _disable_current_modes():
            run(kernel, *args, **options)
        if recorders:
            recorders[-1].graph.work.append(lambda: run(kernel, *args, **options))

    monkeypatch.setattr(interpreter.InterpretedFunction, "run", launch)
