"""Launches steps: plan in, device work out, everything that a later step needs left on the device."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from ..config import Limits
from ..layers.batch import Batch
from ..memory.inspection import Inspection
from ..memory.kv_pool import KVPool
from ..memory.sanitizer import Done, Sanitizer
from ..memory.state_pool import Committed, StatePool
from ..models.base import CausalLM
from ..plan import Grant, StepPlan
from .inputs import Inputs, Lanes
from .prompt_scores import PromptScorer
from .readback import Fetch, InFlight, report
from .recomputation import Recomputation
from .sampler import Chosen, Sampler
from .tables import RowTables


class Runner:
    def __init__(
        self, model: CausalLM, limits: Limits, device: torch.device, *, sanitizer: str = "off"
    ) -> None:
        self.model = model
        self.state = StatePool(model.state_specs(), limits, device)
        self.kv = KVPool(model.kv_specs(), limits, device)
        self.tables = RowTables(limits, device)
        self.inputs = Inputs(limits, device)
        self.sampler = Sampler(model.ops, self.tables, self.inputs.adjusted)
        block = max(16, limits.max_num_seqs)  # no more logits at once than a step of choices has
        self.prompt_scorer = PromptScorer(model, self.tables, self.inputs.scored, block)
        self._grants: dict[int, Grant] = {}
        full = sanitizer == "full"
        self.sanitizer = None if sanitizer == "off" else Sanitizer(self.state, self.kv, limits, poison=full)
        self.recomputation = Recomputation(model, limits, self.state, self.kv, self.tables) if full else None

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> InFlight:
        launched = time.perf_counter()
        self._apply(plan)
        lanes = self.inputs.fill(plan)
        batch = self._batch(lanes)
        hidden = self.model(batch)
        chosen = self._choose(hidden, batch, lanes)
        prompt_scores = self.prompt_scorer.score(hidden, batch, lanes)
        committed = self.state.commit(step=batch.step, accepted=batch.step.counts)
        inspection = self._inspect(batch, lanes, chosen, committed, plan.step)
        return InFlight(
            plan=plan,
            lanes=lanes,
            report=Fetch(*report(committed, chosen.tokens)),
            chosen=chosen,
            prompt_scores=prompt_scores,
            grants=dict(self._grants),
            launched=launched,
            inspection=inspection,
        )

    def _apply(self, plan: StepPlan) -> None:
        self.tables.start(plan.starts)
        self.sampler.start(plan.starts)
        self.prompt_scorer.start(plan.starts)
        self.state.start(plan.starts)
        self.kv.start(plan.starts)
        self.kv.map(plan.pages)
        self.state.grant(plan.grants)
        for start in plan.starts:
            self._grants.pop(start.row, None)
        self._grants.update((grant.row, grant) for grant in plan.grants)
        if self.sanitizer:
            self.sanitizer.apply(plan)

    def _batch(self, lanes: Lanes) -> Batch:
        step = self.state.begin(
            rows=lanes.rows,
            counts=lanes.counts,
            offsets=lanes.offsets,
            num_windows=lanes.num_windows,
            longest_window=lanes.longest_window,
            window_tokens=lanes.window_tokens,
            exports=lanes.export_lanes,
        )
        positions = step.position[lanes.lane] + lanes.offset
        tokens = self.tables.tokens[lanes.rows[lanes.lane], positions]
        return Batch(tokens=tokens, positions=positions, step=step, state=self.state, kv=self.kv)

    def _choose(self, hidden: Tensor, batch: Batch, lanes: Lanes) -> Chosen:
        """The next token of every lane that asks for one, written where the next step will read it."""
        rows = lanes.rows[lanes.sampled]
        position = (batch.step.position + batch.step.counts)[lanes.sampled]
        last = (lanes.offsets[:-1] + batch.step.counts - 1)[lanes.sampled]
        chosen = self.sampler.choose(self.model.logits(hidden[last]), rows, position, lanes)
        self.tables.tokens[lanes.tell, position] = chosen.tokens
        return chosen

    def _inspect(
        self, batch: Batch, lanes: Lanes, chosen: Chosen, committed: Committed, step: int
    ) -> Inspection | None:
        if self.sanitizer is None:
            return None
        recomputed = self.recomputation.check(lanes, step) if self.recomputation else None
        return self.sanitizer.settle(
            Done(
                number=step,
                step=batch.step,
                work=lanes.work,
                tokens=batch.tokens,
                positions=batch.positions,
                choosers=lanes.choosers,
                chosen=chosen.tokens,
                granted={
                    lane: grant
                    for lane, work in enumerate(lanes.work)
                    if (grant := self._grants.get(work.row)) and grant.line > work.position - self.state.grid
                },
                used=committed.used,
                exports=lanes.exports,
            ),
            () if recomputed is None else (recomputed,),
        )
