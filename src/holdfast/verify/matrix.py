"""Takes a model through the cells. Its weights are loaded once; each cell has an engine of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ..blueprint import Blueprint
from ..config import EngineConfig, SpeculativeConfig, max_window, pages_for
from ..engine import Engine, build_engine
from ..grammar import GrammarError, Grammars
from ..models.base import CausalLM
from .cells import CELLS, LIBRARY, PLAIN, Cell
from .library import Library, Unavailable
from .rules import Comparison, Scored, compare
from .traffic import FORM, Ask, Served, make_workload, plain_answers, serve

EQUAL, KL, DIFFERS, SKIPPED = "equal", "KL", "differs", "skipped"


@dataclass(frozen=True)
class Outcome:
    """What became of a cell."""

    cell: str
    result: str
    answers: int = 0
    positions: int = 0
    """Tokens compared. After a tie, two answers go on from different tokens and are compared no further."""
    ties: int = 0
    worst: float = 0.0
    happened: Mapping[str, int] = field(default_factory=dict)
    """What the cell is about, and how often it did."""
    detail: str = ""
    seconds: float = 0.0


class Matrix:
    """A model and the answers of its plain path.

    drafter  a speculative_config, for cells that are about the user's own
    options  of EngineConfig, for every engine: device, dtype
    """

    def __init__(
        self,
        directory: Path,
        seed: int = 0,
        *,
        quick: bool = False,
        drafter: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.directory, self.seed, self._options = directory, seed, options
        self._drafter = None if drafter is None else SpeculativeConfig.of(drafter)
        self.dtype = EngineConfig(**options).dtype
        facts = Blueprint(directory, EngineConfig(**options)).facts
        self._recurrent = facts.recurrent
        self._grammars = Grammars(directory, facts.vocab_size)
        self._workload = make_workload(seed, facts.vocab_size, facts.max_positions, quick=quick)
        self._models: dict[bool, CausalLM] = {}  # exact, or not: their weights lie otherwise in memory
        self._answers: Callable[[bool, bool], list[Scored]] = cache(self._answer_plainly)

    def outcomes(self, names: Sequence[str]) -> Iterator[Outcome]:
        """One for each cell, as it is done."""
        cells = {cell.name: cell for cell in CELLS}
        for name in names:
            began = time.monotonic()
            found = self._library() if name == LIBRARY else self._try(cells[name])
            yield Outcome(**{**vars(found), "seconds": time.monotonic() - began})

    def _try(self, cell: Cell) -> Outcome:
        if reason := self._inapplicable(cell):
            return Outcome(cell.name, SKIPPED, detail=reason)
        try:
            reference = self._answers(cell.exact, cell.structured)
            served = serve(
                self._engine(self._options_of(cell)),
                self._asks(cell.exact, cell.structured),
                cell.traffic,
                self._workload.leavers,
                self.seed,
            )
        except Exception as error:  # whatever breaks the engine is an outcome, and the other cells go on
            return Outcome(cell.name, DIFFERS, detail=f"{type(error).__name__}: {error}")
        return self._judge(cell, reference, served)

    def _inapplicable(self, cell: Cell) -> str | None:
        if cell.exact and (self._options.get("device", "cpu") != "cpu" or self.dtype != "float32"):
            return "exact mode is for the CPU and float32"
        if not self._recurrent and {"fold_every", "backend", "num_slots"} & set(cell.options):
            return "the model has no recurrent state"
        if cell.drafter and self._drafter is None:
            return "--speculative-config names no drafter"
        if cell.drafter and cell.exact and self._drafter is not None and self._drafter.topk > 1:
            return "exact mode is for chains, not for trees"
        return self._formless() if cell.structured else None

    def _formless(self) -> str | None:
        """Why the model's answers can have no form."""
        try:
            self._grammars.check(FORM)
        except GrammarError as error:
            return str(error)
        return None

    def _judge(self, cell: Cell, reference: list[Scored], served: Served) -> Outcome:
        compared = [
            (place, compare(reference[place], answer, dtype=self.dtype, exact=cell.exact))
            for place, answer in served.answers
        ]
        happened = {what: served.happened[what] for what in cell.must}
        idle = [what for what, count in happened.items() if not count]
        detail = f"there were no {' and no '.join(idle)}, so nothing is shown" if idle else ""
        asks = self._asks(cell.exact, cell.structured)
        return self._sum_up(cell.name, compared, asks, happened, detail)

    def _library(self) -> Outcome:
        try:
            library = Library(self.directory, self.dtype)
        except Unavailable as reason:
            return Outcome(LIBRARY, SKIPPED, detail=str(reason))
        asks, compared = self._asks(exact=False, structured=False), []
        for place, (ask, answer) in enumerate(zip(asks, self._answers(False, False), strict=True)):
            theirs = library.read(ask.prompt, [scored.token_id for scored in answer])
            compared.append((place, compare(theirs, answer, dtype=self.dtype, exact=False)))
        return self._sum_up(LIBRARY, compared, asks, {}, "")

    def _sum_up(
        self,
        name: str,
        compared: list[tuple[int, Comparison]],
        asks: Sequence[Ask],
        happened: Mapping[str, int],
        detail: str,
    ) -> Outcome:
        wrong = [(place, c.failure) for place, c in compared if c.failure is not None]
        if wrong:
            place, failure = wrong[0]
            prompt = f"prompt {place} ({len(asks[place].prompt)} tokens)"
            detail = f"{len(wrong)} of {len(compared)} answers; {prompt}, {failure}"
        fine = EQUAL if self.dtype == "float32" else KL
        return Outcome(
            cell=name,
            result=DIFFERS if detail else fine,
            answers=len(compared),
            positions=sum(c.positions for _, c in compared),
            ties=sum(c.tie for _, c in compared),
            worst=max(c.worst for _, c in compared),
            happened=happened,
            detail=detail,
        )

    # --- engines ---

    def _asks(self, exact: bool, structured: bool) -> tuple[Ask, ...]:
        greedy = self._workload.formed if structured else self._workload.greedy
        return (*greedy, *(self._workload.drawn if exact else ()))

    def _answer_plainly(self, exact: bool, structured: bool) -> list[Scored]:
        return plain_answers(self._engine({"exact": exact}), self._asks(exact, structured))

    def _engine(self, options: Mapping[str, Any]) -> Engine:
        sizes = {"max_model_len": self._workload.longest, "max_num_seqs": 8}
        known = EngineConfig.__dataclass_fields__
        config = EngineConfig(
            **{k: v for k, v in {**sizes, **PLAIN, **self._options, **options}.items() if k in known}
        )
        engine = build_engine(self.directory, config, weights_of=self._models.get(config.exact))
        self._models.setdefault(config.exact, engine.runner.model)
        return engine

    def _options_of(self, cell: Cell) -> dict[str, Any]:
        options = dict(cell.options) | ({"speculative_config": self._drafter} if cell.drafter else {})
        return options | (self._tight(options) if cell.tight else {})

    def _tight(self, options: Mapping[str, Any]) -> dict[str, int]:
        window = max_window(EngineConfig(speculative_config=options.get("speculative_config")).max_drafts)
        page_size = options.get("page_size", EngineConfig.page_size)
        return {"num_pages": pages_for(self._workload.longest + window, page_size) + 2}
