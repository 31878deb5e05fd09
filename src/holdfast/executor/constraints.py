"""Rows whose answers must have a form: which tokens may be chosen in a step.

What may follow depends on the tokens of the step before. So masks are made between a step's pass through the model
and its choices: by then the step before has ended, and a device that runs by itself is busy with the pass.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..grammar import Grammars, Matcher
from ..ids import Row
from ..ops.transfer import to_device
from ..plan import RowStart
from ..request import ConstraintStats
from .inputs import Lanes
from .readback import InFlight
from .sampler import Masks


@dataclass
class _Following:
    generation: int
    matcher: Matcher
    drafts: Sequence[int] = ()
    """Guesses that stand behind the row's last token, and what each of them follows."""
    parents: Sequence[int] = ()


class Constraints:
    def __init__(self, grammars: Grammars | None, device: torch.device) -> None:
        self._grammars = grammars
        self._device = device
        self._rows: dict[Row, _Following] = {}
        self._before: InFlight | None = None
        self.stats = ConstraintStats()

    def start(self, starts: Sequence[RowStart]) -> None:
        for start in starts:
            self._rows.pop(start.row, None)
            if start.params.structured is not None:
                assert self._grammars is not None
                matcher = self._grammars.matcher(start.params.structured)
                matcher.push(start.tokens[start.prompt_len :])
                self._rows[start.row] = _Following(start.generation, matcher)

    def masks(self, lanes: Lanes) -> Masks:
        """Of a step in which such a row chooses. Waits for the last one that was launched."""
        self._take_chosen()
        began = time.perf_counter()
        places: list[int] = []
        permitted: list[bytes] = []
        failed: list[Row] = []
        for begin, lane in zip(lanes.choices.begins, lanes.choices.choosers, strict=True):
            work = lanes.work[lane]
            if row := self._rows.get(work.row):
                if row.matcher.failed:
                    failed.append(work.row)
                for place, mask in row.matcher.permitted(row.drafts[: work.window.drafts], row.parents):
                    places.append(begin + place)
                    permitted.append(mask)
        self.stats.count(masks=len(places), seconds=time.perf_counter() - began)
        bits = np.frombuffer(b"".join(permitted), np.uint8).reshape(len(places), -1)
        return Masks(
            to_device(places, self._device), to_device(bits, self._device, torch.uint8), frozenset(failed)
        )

    def launched(self, step: InFlight) -> None:
        """A step with masks."""
        self._before = step

    def _take_chosen(self) -> None:
        step, self._before = self._before, None
        if step is None:
            return
        for chosen in step.chosen_tokens():
            row = self._rows.get(chosen.work.row)
            if row is not None and row.generation == chosen.work.generation:
                row.matcher.push(chosen.tokens)
                row.drafts, row.parents = chosen.drafts, chosen.parents
