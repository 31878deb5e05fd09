"""Launches steps: plan in, device work out, everything that a later step needs left on the device."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from ..config import Limits
from ..ids import Row
from ..layers.batch import Batch
from ..memory.kv_pool import KVPool
from ..memory.state_pool import StatePool
from ..models.base import CausalLM
from ..plan import Grant, StepPlan
from .inputs import Inputs, Lanes
from .readback import InFlight, Logprobs
from .tables import RowTables


class Runner:
    def __init__(self, model: CausalLM, limits: Limits, device: torch.device) -> None:
        self.model = model
        self.state = StatePool(model.state_specs(), limits, device)
        self.kv = KVPool(model.kv_specs(), limits, device)
        self.tables = RowTables(limits, device)
        self.inputs = Inputs(limits, device)
        self._wanted: dict[Row, int | None] = {}
        self._grants: dict[int, Grant] = {}

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> InFlight:
        launched = time.perf_counter()
        self._apply(plan)
        lanes = self.inputs.fill(plan)
        batch = self._batch(lanes)
        hidden = self.model(batch)
        chosen, logprobs = self._choose(hidden, batch, lanes)
        committed = self.state.commit(step=batch.step, accepted=batch.step.counts)
        return InFlight(
            plan=plan,
            lanes=lanes,
            committed=committed,
            chosen=chosen,
            logprobs=logprobs,
            wanted=self._alternatives(lanes),
            grants=dict(self._grants),
            launched=launched,
        )

    def _apply(self, plan: StepPlan) -> None:
        self.tables.start(plan.starts)
        self.state.start(plan.starts)
        self.kv.start(plan.starts)
        self.kv.map(plan.pages)
        self.state.grant(plan.grants)
        for start in plan.starts:
            self._wanted[start.row] = start.params.logprobs
            self._grants.pop(start.row, None)
        self._grants.update((grant.row, grant) for grant in plan.grants)

    def _batch(self, lanes: Lanes) -> Batch:
        step = self.state.begin(
            rows=lanes.rows,
            counts=lanes.counts,
            offsets=lanes.offsets,
            num_windows=lanes.num_windows,
            longest_window=lanes.longest_window,
            exports=lanes.export_lanes,
        )
        positions = step.position[lanes.lane] + lanes.offset
        tokens = self.tables.tokens[lanes.rows[lanes.lane], positions]
        return Batch(tokens=tokens, positions=positions, step=step, state=self.state, kv=self.kv)

    def _choose(self, hidden: Tensor, batch: Batch, lanes: Lanes) -> tuple[Tensor, Logprobs | None]:
        """The next token of every lane that asks for one, written where the next step will read it."""
        rows = lanes.rows[lanes.sampled]
        position = (batch.step.position + batch.step.counts)[lanes.sampled]
        logits = self.model.logits(hidden[lanes.offsets[lanes.sampled + 1] - 1])
        chosen = self.model.ops.sample(logits, self.tables.sampling(rows, position))
        self.tables.tokens[rows, position] = chosen
        wanted = self._alternatives(lanes)
        if not wanted:
            return chosen, None
        logprobs = self.model.ops.log_softmax(logits)
        best = logprobs.topk(min(max(wanted.values()), logprobs.shape[-1]), -1)
        return chosen, Logprobs(logprobs.gather(-1, chosen[:, None])[:, 0], best.indices, best.values)

    def _alternatives(self, lanes: Lanes) -> dict[int, int]:
        asked = ((lane, self._wanted[lanes.work[lane].row]) for lane in lanes.choosers)
        return {lane: count for lane, count in asked if count is not None}
