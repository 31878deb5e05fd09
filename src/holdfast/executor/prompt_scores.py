"""Log-probabilities of prompt tokens, for the rows that ask for them, in whatever chunks a prompt comes."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..ids import Row
from ..layers.batch import Batch
from ..models.base import CausalLM
from ..ops.transfer import Buffer
from ..plan import RowStart
from ..request import TokenLogprob
from .inputs import Lanes
from .logprobs import Logprobs, join, score
from .tables import RowTables


@dataclass(frozen=True)
class Ask:
    """Positions first .. end - 1 of a row, with so many alternatives each."""

    first: int
    end: int
    alternatives: int

    def scored_by(self, position: int, tokens: int) -> range:
        """The tokens that this work leads to. The one after its last is among them: it is known, and may come
        in a later step. Of a prompt, the host's position is the device's: nothing in it is uncertain."""
        return range(max(self.first, position + 1), min(self.end, position + tokens + 1))


@dataclass(frozen=True)
class PromptScores:
    """The flat results of some lanes: of each, how many, and how many alternatives it wants."""

    lanes: dict[int, tuple[int, int]]
    logprobs: Logprobs

    def read(self) -> dict[int, tuple[TokenLogprob, ...]]:
        """Waits for the device."""
        left = iter(self.logprobs.read())
        return {
            lane: tuple(next(left).best(alternatives) for _ in range(count))
            for lane, (count, alternatives) in self.lanes.items()
        }


class PromptScorer:
    def __init__(self, model: CausalLM, tables: RowTables, places: Buffer, block: int) -> None:
        self._model = model
        self._tables = tables
        self._places = places
        self._block = block
        """Tokens whose logits exist at once."""
        self._asks: dict[Row, Ask] = {}

    def start(self, starts: tuple[RowStart, ...]) -> None:
        for start in starts:
            self._asks.pop(start.row, None)
            if start.params.prompt_logprobs is not None:
                self._asks[start.row] = Ask(1 + start.scored, start.prompt_len, start.params.prompt_logprobs)

    def score(self, hidden: Tensor, batch: Batch, lanes: Lanes) -> PromptScores | None:
        """From hidden states [tokens, hidden]; None if no lane asks, and then nothing is computed."""
        counts, flat = self._take_asks(lanes) if self._asks else ({}, [])
        if not flat:
            return None
        most = max(alternatives for _, alternatives in counts.values())
        blocks = self._places.fill(flat, lanes.turn).split(self._block)
        return PromptScores(counts, join([self._score(at, hidden, batch, lanes, most) for at in blocks]))

    def _take_asks(self, lanes: Lanes) -> tuple[dict[int, tuple[int, int]], list[int]]:
        """How much each lane wants; and where in the flat batch are the hidden states that lead to it."""
        counts: dict[int, tuple[int, int]] = {}
        flat: list[int] = []
        offset = 0
        for lane, (work, stands) in enumerate(zip(lanes.work, lanes.positions, strict=True)):
            if ask := self._asks.get(work.row):
                scored = ask.scored_by(stands, work.tokens)
                counts[lane] = (len(scored), ask.alternatives)
                flat += [offset + position - 1 - stands for position in scored]
                if scored.stop == ask.end:
                    del self._asks[work.row]
            offset += lanes.shape.window if lanes.shape else work.tokens
        return counts, flat

    def _score(self, at: Tensor, hidden: Tensor, batch: Batch, lanes: Lanes, most: int) -> Logprobs:
        following = self._tables.tokens[lanes.rows[lanes.lane[at]], batch.positions[at] + 1]
        return score(self._model.ops, self._model.logits(hidden[at]), following, most)
