"""Chooses the next token of every lane that asks for one, by the parameters of its row.

What a row needs is known on the host from its start. So the device is asked nothing, and what no row of a
step needs does not happen: if all are greedy, there is an argmax and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from ..ids import Row
from ..ops.backend import Ops
from ..ops.sampling.reference import SamplingRows
from ..plan import RowStart
from ..request import SamplingParams
from .inputs import Buffer, Lanes
from .logprobs import Logprobs, score
from .tables import RowTables


@dataclass(frozen=True)
class Chosen:
    tokens: Tensor
    """[S], for `lanes.choices`"""
    logprobs: Logprobs | None
    wanted: dict[int, int]
    """Alternatives asked for, by lane; a lane that is absent wants no log-probabilities."""


class Sampler:
    def __init__(self, ops: Ops, tables: RowTables, adjusted: Buffer) -> None:
        self._ops = ops
        self._tables = tables
        self._adjusted = adjusted
        self._params: dict[Row, SamplingParams] = {}

    def start(self, starts: tuple[RowStart, ...]) -> None:
        self._params.update((start.row, start.params) for start in starts)

    def choose(self, logits: Tensor, rows: Tensor, position: Tensor, lanes: Lanes) -> Chosen:
        """Of logits [S, vocab] for `lanes.choices`, whose tokens will stand at `position`."""
        params = self._params_of(lanes)
        sampling = self._sampling(rows, position, params)
        tokens = self._ops.sample(self._adjust(logits, rows, position, lanes), sampling)
        asked = zip(lanes.choices.choosers, (p.logprobs for p in params), strict=True)
        wanted = {lane: count for lane, count in asked if count is not None}
        logprobs = score(self._ops, logits, tokens, max(wanted.values())) if wanted else None
        return Chosen(tokens, logprobs, wanted)

    def guesser(self, rows: Tensor, lanes: Lanes) -> Callable[[Tensor, Tensor], Tensor]:
        """How a drafter chooses for the lanes that chose: from logits [C, vocab] and positions [C], with the noise
        of those positions. Penalties and biases are left to the verification."""
        params = self._params_of(lanes)

        def guess(logits: Tensor, position: Tensor) -> Tensor:
            return self._ops.sample(logits, self._sampling(rows, position, params))

        return guess

    def _params_of(self, lanes: Lanes) -> list[SamplingParams]:
        return [self._params[lanes.work[lane].row] for lane in lanes.choices.choosers]

    def _sampling(self, rows: Tensor, position: Tensor, params: list[SamplingParams]) -> SamplingRows:
        return self._tables.sampling(
            rows, position, draws=any(p.draws for p in params), truncates=any(p.truncates for p in params)
        )

    def _adjust(self, logits: Tensor, rows: Tensor, position: Tensor, lanes: Lanes) -> Tensor:
        """A copy in which the rows that ask for it are adjusted; the logits themselves if none does."""
        choosing = zip(lanes.choices.begins, (lanes.work[i] for i in lanes.choices.choosers), strict=True)
        asking = {
            begin + place: work
            for begin, work in choosing
            if self._params[work.row].adjusts
            for place in range(work.window.most_chosen)
        }
        if not asking:
            return logits
        places = self._adjusted.fill(list(asking), lanes.turn)
        lengths = (w.position + w.tokens for w in asking.values() if self._params[w.row].penalises)
        adjustments = self._tables.adjustments(
            rows[places],
            position[places],
            entries=max(self._tables.num_entries(work.row) for work in asking.values()),
            history=max(lengths, default=0),
        )
        return logits.float().index_copy(0, places, self._ops.adjust(logits[places], adjustments))
