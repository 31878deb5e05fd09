"""Launches steps: plan in, device work out, everything that a later step needs left on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from operator import sub

import torch
from torch import Tensor

from ..config import Limits
from ..grammar import Grammars
from ..layers.batch import Batch
from ..memory.accesses import Use
from ..memory.inspection import Inspection
from ..memory.kv_pool import KVPool
from ..memory.sanitizer import Done, Sanitizer
from ..memory.state_pool import Committed, StatePool
from ..ops.acceptance.reference import Verified
from ..ops.places import ToKeep
from ..ops.step import StateStep
from ..plan import Grant, StepPlan
from ..progress import Progress
from ..spec.ensemble import Ensemble
from .backlog import Backlog
from .constraints import Constraints
from .graphs import Graphs, Rehearsal
from .inputs import Inputs, Lanes, Shape
from .largest import largest_steps
from .prompt_scores import PromptScorer
from .readback import TRAYS, Fetch, InFlight, Laps, Mark, Tray, report
from .recomputation import Recomputation
from .sampler import Chosen, Masks, Needs, Sampler
from .speculation import Drafted, Speculation
from .tables import RowTables


@dataclass(frozen=True)
class Passed:
    """Without logits: every recording keeps what it gives, and those are large."""

    batch: Batch
    hidden: Tensor
    keep: ToKeep | None
    uses: tuple[Use, ...]
    """Of state, by a uniform step under the sanitizer."""


@dataclass(frozen=True)
class Ended:
    chosen: Chosen
    report: Tensor


RECORDED = (Needs(), Needs(draws=True), Needs(draws=True, truncates=True))
"""What lanes may ask for together and a recorded step gives."""
GUESSED = (Needs(), Needs(draws=True, truncates=True))
"""Of what lanes may ask for together, all that drafters go by in a recorded step."""


class Runner:
    """shapes: those of uniform steps, and depths: the numbers of drafts they may propose. `record` records them all,
    so that nothing is new when the depth changes. At start, in this order: `compile_ahead`, `record`, `exert`."""

    def __init__(
        self,
        ensemble: Ensemble,
        limits: Limits,
        device: torch.device,
        *,
        sanitizer: str = "off",
        shapes: Sequence[Shape] = (),
        depths: Sequence[int] = (0,),
        grammars: Grammars | None = None,
    ) -> None:
        self.ensemble, self.model, self.device = ensemble, ensemble.model, device
        self.state = StatePool(ensemble.state_specs(), limits, device, self.model.ops)
        self.kv = KVPool(ensemble.kv_specs(), limits, device)
        self.tables = RowTables(limits, device)
        self.shapes, self.depths, self.graphs = shapes, depths, Graphs()
        self.inputs = Inputs(limits, device, shapes)
        self.sampler = Sampler(self.model.ops, self.tables, self.inputs.adjusted)
        self.constraints = Constraints(grammars, device)
        self.speculation = Speculation(self.model.ops, self.tables, ensemble.drafter)
        block = max(16, limits.max_num_seqs)  # no more logits at once than a step of choices has
        self.prompt_scorer = PromptScorer(self.model, self.tables, self.inputs.scored, block)
        patient = ensemble.drafter if 0 in depths and sanitizer == "off" else None
        self.backlog = Backlog(patient, limits, self.inputs.behind)
        self._limits = limits
        self._grants: dict[int, Grant] = {}
        self._laps, self._trays = Laps(), [Tray(device) for _ in range(TRAYS)]
        full = sanitizer == "full"
        self.sanitizer = None if sanitizer == "off" else Sanitizer(self.state, self.kv, limits, poison=full)
        self.recomputation = None
        if full:
            self.recomputation = Recomputation(ensemble, limits, self.state, self.kv, self.tables)

    @torch.inference_mode()
    def compile_ahead(self) -> None:
        if self.shapes:
            self.model.ops.compile_ahead(self._rehearse)

    @torch.inference_mode()
    def record(self, shapes: Sequence[Shape] | None = None) -> None:
        """Every shape of a uniform step, or these; the largest first: the smaller ones then fit into its memory."""
        shapes = sorted(shapes or self.shapes, key=lambda s: (s.lanes * s.window, s.lanes), reverse=True)
        with Progress("Recording", len(shapes), lambda: f"{bar.done} of {len(shapes)} shapes") as bar:
            for shape in shapes:
                self._record(shape, self.graphs)
                bar.advance()

    @torch.inference_mode()
    def exert(self) -> None:
        """The largest steps that may come, once: then there is memory for all others. Nobody may be in a row yet."""
        held: list[InFlight] = []  # what they made, as steps hold it that overlap
        for plan in largest_steps(self._limits, max(self.depths)):
            held.append(self.launch(plan))
            if len(held) > 1:
                held[-2].report.wait()  # the next one's inputs go through the same memory of the host
        held[-1].report.wait()

    def _rehearse(self) -> None:
        """All that is recorded, and a prompt's run, of a length that 16 divides and of one that it does not: kernels
        tell them apart."""
        for shape in self.shapes:
            self._record(shape, Rehearsal())
        if self.sanitizer is not None:
            return
        for tokens in (320, 331):
            if self._limits.max_window < tokens <= self._limits.max_num_batched_tokens:
                lanes = self.inputs.run_of_padding(tokens)
                self._end(self._pass(lanes), lanes, Needs())
        self.exert()

    def _record(self, shape: Shape, graphs: Graphs | Rehearsal) -> None:
        lanes = self.inputs.padding(shape)
        for absorbs in (True, False) if shape.window == 1 and self.backlog.room(shape.lanes) else (True,):
            key, work = ("pass", shape, absorbs), partial(self._pass, lanes, absorbs)
            graphs.record(key, work)
            passed = graphs.run(key, work)
            for needs in RECORDED:
                graphs.record(("end", shape, absorbs, needs), partial(self._end, passed, lanes, needs))
        if self.speculation.drafter is not None and shape.window == 1:  # to draft, windows do not matter
            for depth, needs in product(sorted({*self.depths} - {0}, reverse=True), GUESSED):
                graphs.record(("draft", shape.lanes, depth, needs), partial(self._draft, lanes, needs, depth))
        if shape.window == 1 and (longest := self.backlog.room(shape.lanes)):
            rows, missed = self.backlog.on_device(shape.lanes, turn=0)
            graphs.record(("catch up", shape.lanes), partial(self._catch_up, rows, missed, longest))

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> InFlight:
        begun = Mark(self.device) if len(plan.starts) == len(plan.work) else None
        lanes = self.inputs.fill(plan)
        absorbs = self._absorbs(plan, lanes)  # before pages are given to others
        self._apply(plan)
        if self.sanitizer and lanes.uniform:
            self.sanitizer.recorded.expect(lanes.work, lanes.positions, lanes.uncertain, lanes.turn)
        needs, starved = self.sampler.needs(lanes), self._laps.starved
        passed = self.graphs.run(("pass", lanes.shape, absorbs), lambda: self._pass(lanes, absorbs))
        prompt_scores = self.prompt_scorer.score(passed.hidden, passed.batch, lanes)
        masks = self.constraints.masks(lanes) if needs.constrained else None
        ended = self.graphs.run(
            ("end", lanes.shape, absorbs, needs), lambda: self._end(passed, lanes, needs, plan.step, masks)
        )
        fetched = self._fetch(ended.report, plan.step, needs)  # the host need not wait for drafts
        drafted = self._drafted(plan, lanes, needs) if plan.propose else None
        inspection = self._inspect(lanes, drafted, fetched, plan.step)
        step = InFlight(
            plan=plan,
            lanes=lanes,
            report=fetched,
            chosen=ended.chosen,
            prompt_scores=prompt_scores,
            grants=dict(self._grants),
            begun=begun,
            laps=self._laps,
            host_seconds=self._laps.launched(fetched) if self.device.type == "cuda" else 0.0,
            starved=starved,
            plain=self._is_plain(plan, lanes, needs),
            inspection=inspection,
            drafts=drafted.fetch() if needs.constrained and drafted else None,
            failed=masks.failed if masks else frozenset(),
        )
        if needs.constrained:
            self.constraints.launched(step)
        return step

    def _is_plain(self, plan: StepPlan, lanes: Lanes, needs: Needs) -> bool:
        if plan.starts or plan.propose or plan.grants or plan.exports or needs.constrained or self.sanitizer:
            return False
        windows = lanes.longest_window == 1 and len(lanes.work) <= lanes.num_windows
        return windows and len(lanes.choices.choosers) == len(lanes.work)

    def _fetch(self, report: Tensor, step: int, needs: Needs) -> Fetch:
        """Constraints ask what was chosen when they choose next, and that may be many steps later."""
        return Fetch(report) if needs.constrained else self._trays[step % TRAYS].take(report, step)

    def _absorbs(self, plan: StepPlan, lanes: Lanes) -> bool:
        """Or may the drafter leave this step's tokens for later? What it left before it absorbs now, unless this step
        adds to it."""
        backlog = self.backlog
        if not backlog.patience:
            return True
        if backlog.goes_on(plan, lanes):
            return False
        grows = backlog.may_grow(plan, lanes)
        if backlog.tokens and not (grows and backlog.holds(plan, lanes)):
            self._clear_backlog(plan.step)
        if grows:
            if backlog.trails and not backlog.tokens:
                self.state.trail()
            backlog.grow(lanes)
        backlog.heard(plan)
        return not grows

    def _clear_backlog(self, turn: int) -> None:
        backlog = self.backlog
        rows, missed = backlog.on_device(backlog.lanes, turn)
        for _ in range(backlog.passes):
            self.graphs.run(
                ("catch up", backlog.lanes), lambda: self._catch_up(rows, missed, backlog.longest)
            )
        backlog.clear()

    def _catch_up(self, rows: Tensor, missed: Tensor, longest: int) -> None:
        by = self.speculation
        (by.catch_up_behind if self.backlog.trails else by.catch_up)(
            rows, missed, longest, self.state, self.kv
        )

    def _pass(self, lanes: Lanes, absorbs: bool = True) -> Passed:
        """All tokens through the model."""
        batch = self._batch(lanes)
        hidden, keep = self.ensemble(batch, absorbs)
        return Passed(batch, hidden, keep, self.sanitizer.uses() if self.sanitizer else ())

    def _end(
        self, passed: Passed, lanes: Lanes, needs: Needs, number: int = 0, masks: Masks | None = None
    ) -> Ended:
        """Tokens are chosen; cursors move."""
        batch, hidden = passed.batch, passed.hidden
        checks = self.sanitizer.recorded if self.sanitizer and lanes.uniform else None
        if checks:
            checks.check(passed.uses, batch.step, batch.tokens, lanes.choices.drafts)
        logits = self.model.logits(
            hidden if lanes.uniform else hidden[lanes.choices.after]
        )  # or after every one
        sampled = self.sampler.choose(logits, batch.positions, lanes, needs, masks)
        verified, chosen = self._verify(batch.step, lanes, sampled)
        committed = self.state.commit(step=batch.step, accepted=verified.certain, keep=passed.keep)
        self._settle(passed, lanes, sampled, verified, committed, number)
        return Ended(chosen, report(committed, verified, chosen.tokens, *([checks.found] if checks else [])))

    def _drafted(self, plan: StepPlan, lanes: Lanes, needs: Needs) -> Drafted | None:
        """After a prompt by a recorded drafter as well: the host would take longer for one than for the prompt. Not
        under the sanitizer, which must see each draft made."""
        guessed, depth = GUESSED[needs.draws], plan.propose
        key = ("draft", self.inputs.size(lanes), depth, guessed)
        if lanes.uniform:
            return self.graphs.run(key, lambda: self._draft(lanes, guessed, depth))
        if key not in self.graphs or self.sanitizer or not lanes.choices.choosers:
            return self._draft(lanes, needs, depth)
        self.inputs.as_if_uniform(lanes)
        return self.graphs.run(key, lambda: None)

    def _draft(self, lanes: Lanes, needs: Needs, depth: int) -> Drafted | None:
        """What comes next is guessed."""
        drafted = self.speculation.propose(depth, lanes, self.sampler, needs, self.state, self.kv)
        if drafted is not None and self.sanitizer and lanes.uniform:
            uses = self.sanitizer.uses()
            self.sanitizer.recorded.settle_drafts(uses, drafted.step.here, drafted.draft.tokens)
        return drafted

    def _verify(self, step: StateStep, lanes: Lanes, chosen: Chosen) -> tuple[Verified, Chosen]:
        """What was chosen for a lane then begins with what it gets."""
        if (trees := self.speculation.trees) is not None:
            return trees.verify(step, lanes, chosen, self.state, self.kv)
        return self.speculation.verify(step, lanes, chosen.tokens), chosen

    def _apply(self, plan: StepPlan) -> None:
        self.tables.start(plan.starts)
        self.sampler.start(plan.starts)
        self.constraints.start(plan.starts)
        self.prompt_scorer.start(plan.starts)
        self.state.start(plan.starts)
        self.kv.start(plan.starts)
        self.kv.map(plan.pages, plan.step)
        self.state.grant(plan.grants, plan.step)
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
            tree=self.speculation.trees.of(lanes) if self.speculation.trees else None,
            uniform=lanes.uniform,
        )
        rows, positions, tokens = self.model.ops.absorbed(
            self.tables.tokens, lanes.rows, lanes.counts, step.position, lanes.lane, lanes.offset
        )
        step = replace(step, token_places=(rows, positions))
        standing = step.positions_of(len(tokens))
        return Batch(tokens=tokens, positions=standing, step=step, state=self.state, kv=self.kv)

    def _settle(
        self,
        passed: Passed,
        lanes: Lanes,
        sampled: Chosen,
        verified: Verified,
        committed: Committed,
        step: int,
    ) -> None:
        if self.sanitizer is None:
            return
        batch, choices = passed.batch, lanes.choices
        if lanes.uniform:
            self.sanitizer.recorded.settle(
                batch.step,
                drafts=choices.drafts,
                accepted=verified.accepted,
                chosen=sampled.tokens,
                used=committed.used,
            )
            return
        self.sanitizer.settle(
            Done(
                number=step,
                step=batch.step,
                work=lanes.work,
                most=lanes.positions,
                least=tuple(map(sub, lanes.positions, lanes.uncertain)),
                tokens=batch.tokens,
                places=batch.step.places_of(len(batch.tokens))[1],
                choosers=choices.choosers,
                chosen=choices.drafts.by_lane(sampled.tokens),
                accepted=verified.accepted,
                granted={
                    lane: grant
                    for lane, work in enumerate(lanes.work)
                    if (grant := self._grants.get(work.row))
                    and grant.line > lanes.positions[lane] - lanes.uncertain[lane] - self.state.grid
                },
                used=committed.used,
                exports=lanes.exports,
            )
        )

    def _inspect(self, lanes: Lanes, drafted: Drafted | None, fetched: Fetch, step: int) -> Inspection | None:
        if self.sanitizer is None:
            return None
        if lanes.uniform:
            found = Fetch(self.sanitizer.recorded.found) if drafted else fetched
            return self.sanitizer.inspection(step, told=lambda: found.wait()[0])
        if drafted is not None:
            ahead, draft = drafted.step, drafted.draft
            self.sanitizer.settle_drafts(ahead.rows, ahead.position, draft.tokens, draft.parents)
        recomputed = self.recomputation.check(lanes, step) if self.recomputation else None
        return self.sanitizer.inspection(step, () if recomputed is None else (recomputed,))
