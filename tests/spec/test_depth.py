"""A depth that changes while serving changes no answer, allocates nothing, and costs nothing when it is 0."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.host.restless import Restless
from tests.models.conformance import bits, slow_but
from tests.reuse.families import Find
from tests.spec.drafters import Knowing
from tests.spec.families import FAMILIES
from tests.spec.test_chains import EXACT, GIVEN, PARAMS, WAYS, texts, without

from holdfast import LLM, SamplingParams
from holdfast.executor.inputs import Shape, uniform_shapes
from holdfast.executor.readback import InFlight
from holdfast.plan import StepPlan, StepResult
from holdfast.scheduler.depth import Depth
from holdfast.spec.drafter import Draft, VerifiedStep

ADAPTIVE = {
    "method": "ngram",
    "num_speculative_tokens": 1,
    "adaptive": {"candidate_steps": [0, 1, 3, 7]},
    "prompt_lookup_min": 1,
}
CASES = [(family, way) for family in FAMILIES for way in WAYS]
DAILY = [("selective-scan", "everything"), ("attention", "no-overlap"), ("gated-delta", "pre-empted")]


class Counting(Knowing):
    """Notes how many drafts it was asked for."""

    def __init__(self, depth: int, known: list[list[int]], right: float) -> None:
        super().__init__(depth, known, right)
        self.asked: list[int] = []

    def propose(self, step: VerifiedStep) -> Draft:
        self.asked.append(step.depth)
        return super().propose(step)


def restless(llm: LLM, drafter: Counting, depth: Depth) -> LLM:
    llm._engine.runner.speculation.drafter = drafter
    llm._engine.scheduler._depth = depth
    return llm


@pytest.mark.parametrize(("family", "way"), slow_but(DAILY, CASES))
def test_the_same_bits_while_it_changes_every_step(find: Find, family: str, way: str) -> None:
    """For every row another share as well; state spaces alone, attention alone, and both."""
    directory = find(family)[0]
    wanted = without(directory)
    drafter = Counting(7, texts(wanted), 0.8)
    llm = LLM(directory, speculative_config=ADAPTIVE, **EXACT, **WAYS[way])
    restless(llm, drafter, Restless((0, 1, 3, 7)))
    outputs = llm.generate(GIVEN, PARAMS)
    assert bits(outputs) == bits(wanted)
    assert set(drafter.asked) == {1, 3, 7} and llm.speculation_stats().accepted > 20
    assert llm._engine.scheduler._cache.check().clean


def test_without_drafts_no_drafter_runs(find: Find) -> None:
    directory = find("gated-delta")[0]
    drafter = Counting(7, [[]], 0.0)
    llm = restless(LLM(directory, speculative_config=ADAPTIVE, **EXACT), drafter, Depth(0))
    llm.generate(GIVEN[:1], PARAMS[:1])
    assert not drafter.asked and not llm.speculation_stats().drafts


def test_buffers_are_those_of_the_largest_candidate_and_stay_where_they_are(find: Find) -> None:
    directory = find("gated-delta")[0]
    fixed = {"method": "ngram", "num_speculative_tokens": 7}
    largest = LLM(directory, speculative_config=fixed, **EXACT).capacity
    llm = LLM(directory, speculative_config=ADAPTIVE, **EXACT)
    assert llm.capacity.limits == largest.limits and llm.capacity.parts == largest.parts
    assert llm.capacity.limits.max_window == 8

    def addresses() -> dict[str, int]:
        runner = llm._engine.runner
        held: dict[str, Any] = {"state": runner.state, "kv": runner.kv, "tables": runner.tables}
        return {
            f"{name}.{key}": value.data_ptr()
            for name, owner in held.items()
            for key, value in vars(owner).items()
            if isinstance(value, torch.Tensor)
        }

    before = addresses()
    restless(llm, Counting(7, [[]], 0.0), Restless((0, 1, 3, 7)))
    llm.generate(GIVEN, PARAMS)
    assert before and addresses() == before


def test_every_candidate_has_its_recorded_window() -> None:
    limits = LLM(None, max_num_seqs=2, max_model_len=256, speculative_config=ADAPTIVE).capacity.limits
    shapes = uniform_shapes(limits, (0, 1, 3, 7))
    assert shapes == tuple(Shape(lanes, window) for lanes in (1, 2) for window in (1, 2, 4, 8))
    assert uniform_shapes(limits, (4,)) == tuple(
        Shape(lanes, window) for lanes in (1, 2) for window in (1, 5)
    )


@pytest.mark.parametrize("policy", ["cost", "ema"])
def test_policies_in_a_whole_engine(find: Find, policy: str) -> None:
    """The same bits, and the stats tell what was decided."""
    directory = find("convolution")[0]
    params = SamplingParams(max_tokens=40, ignore_eos=True, logprobs=1)
    wanted = LLM(directory, **EXACT).generate(GIVEN, params)
    config = {**ADAPTIVE, "adaptive": {"policy": policy, "warmup_batches": 2}}
    llm = LLM(directory, speculative_config=config, **EXACT)
    llm._engine.runner.speculation.drafter = Counting(7, texts(wanted), 0.9)
    assert bits(llm.generate(GIVEN, params)) == bits(wanted)
    stats = llm.speculation_stats()
    assert stats.depth in (0, 1, 3, 7) and stats.why.startswith(f"{stats.depth} drafts (")
    assert len(stats.steps) > 1 and stats.accepted > 20


class Witness(Depth):
    """What it is asked and told, in turn."""

    def __init__(self) -> None:
        super().__init__(1)
        self.heard: list[str] = []

    def decide(self) -> int:
        self.heard.append("plan")
        return super().decide()

    def think(self) -> None:
        self.heard.append("think")

    def collected(self, result: StepResult) -> None:
        self.heard.append("collect")


@pytest.mark.parametrize("overlap", [False, True])
def test_it_is_thought_over_between_a_launch_and_the_wait(find: Find, overlap: bool) -> None:
    llm = LLM(find("convolution")[0], speculative_config=ADAPTIVE, overlap=overlap, **EXACT)
    witness = llm._engine.scheduler._depth = Witness()
    launch = llm._engine.runner.launch

    def launched(plan: StepPlan) -> InFlight:
        witness.heard.append("launch")
        return launch(plan)

    llm._engine.runner.launch = launched  # type: ignore[method-assign]
    llm.generate([[1, 2, 3]], SamplingParams(max_tokens=8, ignore_eos=True))
    turn = ["plan", "launch", "think", "collect"]
    begins = ["plan", "launch", "think"] if overlap else turn
    assert witness.heard[: len(begins) + 8] == begins + 2 * turn
