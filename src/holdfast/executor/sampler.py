"""Chooses the next token of every lane that asks for one, by the parameters of its row.

What a row needs is known on the host from its start. So the device is asked nothing, and what no row of a
step needs does not happen: if all are greedy, there is an argmax and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..ids import Row
from ..ops.backend import Ops
from ..ops.sampling.reference import SamplingRows
from ..ops.transfer import Buffer
from ..plan import RowStart
from ..request import SamplingParams
from .inputs import Choices, Lanes
from .logprobs import Logprobs, score
from .tables import RowTables


@dataclass(frozen=True)
class Chosen:
    tokens: Tensor
    """[S], for `lanes.choices`"""
    logprobs: Logprobs | None
    wanted: dict[int, int]
    """Alternatives asked for, by lane; a lane that is absent wants no log-probabilities."""


@dataclass(frozen=True)
class Needs:
    """What the lanes that choose ask for together. What nobody needs does not happen."""

    draws: bool = False
    truncates: bool = False
    adjusts: bool = False
    logprobs: bool = False
    constrained: bool = False

    @property
    def plain(self) -> bool:
        """Nothing whose shape depends on the requests."""
        return not (self.adjusts or self.logprobs or self.constrained)


@dataclass(frozen=True)
class Masks:
    """places  [P]         of the step's choices
    permitted  [P, bytes]  a bit for each token that may be chosen there, the lowest of a byte first
    """

    places: Tensor
    permitted: Tensor
    failed: frozenset[Row] = frozenset()
    """Rows whose form could not be followed any further."""


class Sampler:
    def __init__(self, ops: Ops, tables: RowTables, adjusted: Buffer) -> None:
        self._ops = ops
        self._tables = tables
        self._adjusted = adjusted
        self._params: dict[Row, SamplingParams] = {}
        self._kinds: dict[Row, tuple[bool, ...]] = {}
        """The fields of Needs, of one row."""
        self._before: tuple[Choices, Needs] | None = None

    def start(self, starts: tuple[RowStart, ...]) -> None:
        for start in starts:
            self._before = None
            p = self._params[start.row] = start.params
            scored, constrained = p.logprobs is not None, p.structured is not None
            self._kinds[start.row] = (p.draws, p.truncates, p.adjusts, scored, constrained)

    def needs(self, lanes: Lanes) -> Needs:
        if self._before and self._before[0] is lanes.choices:
            return self._before[1]
        kinds = {self._kinds[lanes.work[lane].row] for lane in lanes.choices.choosers}
        needs = Needs(*map(any, zip(*kinds, strict=True))) if kinds else Needs()
        self._before = lanes.choices, needs
        return needs

    def choose(
        self, logits: Tensor, positions: Tensor, lanes: Lanes, needs: Needs, masks: Masks | None = None
    ) -> Chosen:
        """Of logits [S, vocab] for `lanes.choices`; positions of all the step's tokens."""
        permitted = logits
        if needs.draws or needs.adjusts:
            after = lanes.choices.after
            rows, position = lanes.rows[lanes.lane[after]], positions[after] + 1
        if needs.adjusts:
            permitted = self._adjust(permitted, rows, position, lanes)
        if masks is not None:
            permitted = self._ops.permit(permitted, masks.places, masks.permitted)
        if needs.draws:
            tokens = self._ops.sample(permitted, self._sampling(rows, position, needs))
        else:
            tokens = self._ops.most_likely(permitted)
        if not needs.logprobs:
            return Chosen(tokens, None, {})
        asked = zip(lanes.choices.choosers, (p.logprobs for p in self._params_of(lanes)), strict=True)
        wanted = {lane: count for lane, count in asked if count is not None}
        return Chosen(tokens, score(self._ops, logits, tokens, max(wanted.values())), wanted)

    def guesser(self, rows: Tensor, position: Tensor, needs: Needs) -> Callable[[Tensor, int], Tensor]:
        """How a drafter chooses for the lanes that chose: from logits [C, vocab], so many places after their
        positions, or [C, T, vocab], of T places from there on; with the noise of each place. Penalties and biases are
        left to the verification."""
        asked = self._sampling(rows, position, needs) if needs.draws else None

        def guess(logits: Tensor, place: int) -> Tensor:
            *shape, vocab = logits.shape
            flat = logits.reshape(-1, vocab)
            if asked is None:
                return self._ops.most_likely(flat).view(shape)
            if len(shape) == 1:
                return self._ops.sample(flat, replace(asked, position=position + place))
            places = torch.arange(place, place + shape[1], device=rows.device)
            every = rows[:, None].expand(shape).flatten(), (position[:, None] + places).flatten()
            return self._ops.sample(flat, self._sampling(*every, needs)).view(shape)

        return guess

    def _params_of(self, lanes: Lanes) -> list[SamplingParams]:
        return [self._params[lanes.work[lane].row] for lane in lanes.choices.choosers]

    def _sampling(self, rows: Tensor, position: Tensor, needs: Needs) -> SamplingRows:
        return self._tables.sampling(rows, position, draws=needs.draws, truncates=needs.truncates)

    def _adjust(self, logits: Tensor, rows: Tensor, position: Tensor, lanes: Lanes) -> Tensor:
        """A copy in which the rows that ask for it are adjusted."""
        asking = {
            begin + place: lane
            for begin, lane in zip(lanes.choices.begins, lanes.choices.choosers, strict=True)
            if self._params[lanes.work[lane].row].adjusts
            for place in range(lanes.work[lane].window.most_chosen)
        }
        places = self._adjusted.fill(list(asking), lanes.turn)
        rows_asking = {lane: lanes.work[lane].row for lane in asking.values()}
        penalised = [lane for lane, row in rows_asking.items() if self._params[row].penalises]
        adjustments = self._tables.adjustments(
            rows[places],
            position[places],
            entries=max(map(self._tables.num_entries, rows_asking.values())),
            history=max(map(lanes.end, penalised), default=0),
        )
        return logits.float().index_copy(0, places, self._ops.adjust(logits[places], adjustments))
