"""What a drafter costs a step without drafts: no launch, for what it remembers is kept as cursors move."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.executor.test_drafted_graphs import _recording_runner, write_drafter
from tests.executor.test_graphs import interpreted
from torch.utils._python_dispatch import TorchDispatchMode

from holdfast import LLM, engine
from holdfast.executor.inputs import Shape
from holdfast.executor.runner import Runner
from holdfast.executor.sampler import Needs

FREE = {
    "detach",
    "empty",
    "flatten",
    "new_empty",
    "select",
    "slice",
    "split_with_sizes",
    "to",
    "unflatten",
    "view",
}
"""Operations that launch nothing, as they are used here: all tensors have the dtype and lie as they should."""


class Launches(TorchDispatchMode):
    """Kernels of Triton's, and whatever of torch's is not free."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()
        interpreter = pytest.importorskip("triton.runtime.interpreter")
        run, self._within = interpreter.InterpretedFunction.run, False

        def counted(kernel: Any, *args: Any, **options: Any) -> Any:
            self.seen[kernel.fn.__name__] += 1
            self._within = True
            try:
                return run(kernel, *args, **options)
            finally:
                self._within = False

        monkeypatch.setattr(interpreter.InterpretedFunction, "run", counted)

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = operation._schema.name.removeprefix("aten::")
        if not self._within and name not in FREE:
            self.seen[name] += 1
        return operation(*args, **(kwargs or {}))

    def of(self, work: Callable[[], object]) -> Counter[str]:
        self.seen.clear()
        with torch.inference_mode(), self:
            work()
        return self.seen.copy()


@interpreted
@pytest.mark.parametrize("name", ["mtp", "eagle3", "dflash"])
def test_a_step_without_drafts_has_as_many_launches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    model, config = write_drafter(name, tmp_path)
    drafting = {**config, "num_speculative_tokens": 1, "adaptive": {"candidate_steps": [0, 1]}}
    monkeypatch.setattr(engine, "Runner", _recording_runner)
    monkeypatch.setattr(Runner, "record", lambda runner: None)
    sizes = dict(max_num_seqs=1, max_model_len=40, page_size=16, max_num_batched_tokens=24)
    runner = LLM(model, backend="triton", speculative_config=drafting, **sizes)._engine.runner
    launches, lanes = Launches(monkeypatch), runner.inputs.padding(Shape(1, 1))
    passed = runner._pass(lanes, absorbs=False)
    remembering = launches.of(lambda: runner._pass(lanes, absorbs=False))
    alone = launches.of(lambda: runner.model(runner._batch(lanes)))
    assert passed.keep is not None and alone.total() > 20 and remembering == alone
    kept = launches.of(lambda: runner._end(passed, lanes, Needs()))
    plain = launches.of(lambda: runner._end(replace(passed, keep=None), lanes, Needs()))
    assert kept - plain == Counter(commit_keeping=1) and plain - kept == Counter(commit=1)
