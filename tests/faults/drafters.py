"""What a drafter keeps and drafts. No such fault changes an answer: drafts are accepted less often, that is all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from holdfast.executor.runner import Runner
from holdfast.layers.eagle import EagleThreeHead
from holdfast.models.dflash import DFlashHead
from holdfast.plan import StepPlan
from holdfast.spec.drafter import PREFIX
from holdfast.spec.eagle_multi import EagleMulti

from .contracts import dflash_drafts, eagle_drafts, eagle_multi_drafts
from .fault import Fault, wrap


def _offsets_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EagleThreeHead, "drafted", lambda head: torch.arange(len(head.d2t)))


def _cold_after_a_hit(patch: pytest.MonkeyPatch) -> None:
    def forgetting(apply: Callable[..., None]) -> Callable[..., None]:
        def other(runner: Runner, plan: StepPlan) -> None:
            apply(runner, plan)
            for start in plan.starts:
                shared = [p.page for p in plan.pages if p.row == start.row][
                    : start.base // runner.kv.page_size
                ]
                for name, layer in runner.kv.layers.items():
                    if name.startswith(PREFIX):
                        layer.keys[shared] = layer.values[shared] = 0

        return other

    wrap(patch, Runner, "_apply", forgetting)


def _current_token_counted(patch: pytest.MonkeyPatch) -> None:
    def early(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def other(head: DFlashHead, embedding: Tensor, batch: Any) -> Tensor:
            blocks = forward(head, embedding, batch).unflatten(0, (len(batch.step.rows), -1))
            return blocks.roll(1, 1).flatten(0, 1)

        return other

    wrap(patch, DFlashHead, "forward", early)


def _first_head_for_all(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EagleMulti, "_heads", property(lambda drafter: [drafter.heads[0]] * len(drafter.heads)))


FAULTS = (
    Fault(
        "d2t-ignored",
        "a class of many",
        "a head that knows a part of the vocabulary drafts by its own numbering",
        "tests/spec/test_eagle.py",
        _offsets_ignored,
        contract=eagle_drafts,
    ),
    Fault(
        "drafter-cold-after-a-hit",
        "a class of many",
        "a prefix is resumed without the drafter's keys and values",
        "tests/spec/test_eagle.py",
        _cold_after_a_hit,
        contract=eagle_drafts,
    ),
    Fault(
        "first-head-for-all",
        "SGLang #25029",
        "every draft of a window is made by the first of several heads",
        "tests/spec/test_eagle_multi.py",
        _first_head_for_all,
        contract=eagle_multi_drafts,
    ),
    Fault(
        "current-token-counted",
        "a class of many",
        "a block's first draft is read in the place of the token that it follows",
        "tests/spec/test_dflash.py",
        _current_token_counted,
        contract=dflash_drafts,
    ),
)
