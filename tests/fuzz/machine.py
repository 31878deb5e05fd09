"""Random traffic: hypothesis draws events, a World applies them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import hypothesis
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from holdfast.params import Structured

from .models import VOCAB, WITH_MTP
from .oracle import ORACLE
from .world import Event, Script, World, begin

TEXTS = 2
"""Prompts are cut from few texts, at few places, so that many begin alike and the oracle is asked little."""
CUTS = [8, 16, 32, 3, 20, 64, 100]
LENGTHS = [9, 17, 33, 8, 16, 32, 1, 2, 24, 40]
LONG = [63, 64, 65, 100, 130]
"""For normal mode, where whole blocks of 64 are computed in another form."""
FORMS = [r"(tide [0-9]{2}){99}", r"([ab]{2}|[x-z]c){99}"]
"""Of answers, some of them; longer than any."""
GRIDS = [(4, 8), (16, 16), (8, 32), (16, 64)]
"""(fold_every, page_size); exact mode, which is slow, has the first, whose lines are soon reached"""


def text(number: int, length: int) -> list[int]:
    state, tokens = number + 1, []
    for _ in range(length):
        state = (state * 1103515245 + 12345) % (1 << 31)
        tokens.append((state >> 8) % VOCAB)
    return tokens


DRAFTERS = ("none", "itself", "another", "ngram", "mtp", "eagle", "eagle_multi", "dflash", "tree", "restless")
"""The model itself is as often right as it may; another, with state, seldom is. Heads are helped. A restless one is
asked for another number of drafts in every step, or for none."""


def drafters(model: str) -> list[str]:
    return [name for name in DRAFTERS if name != "mtp" or model in WITH_MTP]


def speculation(drafter: str, model: str, fold_every: int) -> dict[str, Any] | None:
    """In a script, the model that a head is for stands in the place of its directory."""
    if drafter == "none":
        return None
    if drafter == "tree":
        levels, nodes = (2, 4) if fold_every == 4 else (3, 7)
        tree = {"num_speculative_tokens": levels, "topk": 2, "num_draft_tokens": nodes}
        return {"method": "eagle", "model": model, **tree}
    if drafter == "restless":
        depths = {"candidate_steps": [0, 1, 3]}
        return {"method": "eagle", "model": model, "num_speculative_tokens": 1, "adaptive": depths}
    asked: dict[str, Any] = {"method": drafter, "num_speculative_tokens": 3}
    if drafter == "ngram":
        return asked | {"prompt_lookup_min": 1}
    if drafter == "itself":
        return asked | {"method": "standalone", "model": model}
    if drafter == "another":
        return {"method": "standalone", "num_speculative_tokens": 1, "model": "gated-delta"}
    return asked if drafter == "mtp" else asked | {"model": model}


@st.composite
def engines(draw: st.DrawFn, model: str, drafter: str) -> Event:
    """Small pools, and everything that an engine can be told to do."""
    exact = draw(st.sampled_from([False, True, False])) and drafter != "tree"
    fold_every, page_size = draw(st.sampled_from(GRIDS[:1] if exact else GRIDS))
    rows = draw(st.sampled_from([4, 3, 4, 2, 1]))
    return begin(
        model,
        exact=exact,
        spare_pages=draw(st.sampled_from([0, 1, 2, 5, 40])),
        fold_every=fold_every,
        page_size=page_size,
        max_model_len=64 if exact else 160,
        max_num_seqs=rows,
        num_slots=None if model == "attention" else rows + draw(st.sampled_from([3, 1, 0, 12])),
        max_num_batched_tokens=draw(st.sampled_from([24, 256, 64, 7, 3])),
        speculative_config=speculation(drafter, model, fold_every),
        overlap=draw(st.booleans()),
        brief=draw(st.booleans()),
        backend=draw(st.sampled_from(["reference", "reference_kv"])),
        enable_prefix_caching=draw(st.sampled_from([True, True, True, False])),
        sanitizer=draw(st.sampled_from(["full", "stamps", "off"])),
    )


class EngineMachine(RuleBasedStateMachine):
    """What the whole engine must withstand. A failure leaves its script in `failure`, the shortest one last."""

    model: ClassVar[str]
    drafters: ClassVar[Sequence[str]]
    covered: ClassVar[Counter[str]]
    failure: ClassVar[Script | None] = None

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.failed = False

    def do(self, event: Event) -> None:
        self._guarded(lambda: self.world.apply(event))

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception:
            self.failed = True
            type(self).failure = self.world.script
            raise

    @initialize(count=st.integers(3, 6), drawn=st.data())
    def begin(self, count: int, drawn: st.DataObject) -> None:
        """There is company from the start: hypothesis also tries runs without one or another of the rules."""
        drafter = drawn.draw(st.sampled_from(self.drafters))
        self.do(drawn.draw(engines(self.model, drafter)))
        self.world.covered[f"runs with {drafter}"] += 1
        self.submit(count, drawn)

    @rule(count=st.integers(1, 3), drawn=st.data())
    def submit(self, count: int, drawn: st.DataObject) -> None:
        """Prompts that begin as one text and go on as another."""
        lengths = LENGTHS if self.world.setting.exact else LENGTHS + LONG
        for _ in range(count):
            length = drawn.draw(st.sampled_from(lengths))
            beginning = text(
                drawn.draw(st.integers(1, TEXTS)), min(length, drawn.draw(st.sampled_from(CUTS)))
            )
            self._submit(beginning + text(-1, length - len(beginning)), drawn)

    @precondition(lambda self: self.world.ended)
    @rule(which=st.integers(0, 5), more=st.sampled_from([1, 8, 20]), drawn=st.data())
    def follow_up(self, which: int, more: int, drawn: st.DataObject) -> None:
        """The next turn of a conversation: an ended request with its answer, and something new."""
        before = list(self.world.ended.values())[-1 - which % len(self.world.ended)]
        self._submit([*before.tokens, *text(0, more)], drawn)

    def _submit(self, prompt: list[int], drawn: st.DataObject) -> None:
        world = self.world
        prompt = prompt[: world.max_model_len - 1]
        temperature = drawn.draw(st.sampled_from([0.0, 0.8])) if world.setting.exact else 0.0
        seed = drawn.draw(st.integers(0, 1)) if temperature else 0
        count = drawn.draw(st.sampled_from([28, 28, 28, 9, 1]))
        params: dict[str, Any] = {"max_tokens": count, "temperature": temperature}
        form = drawn.draw(st.sampled_from([None, None, None, *FORMS]))
        params |= {"structured": {"regex": form}} if form else {"ignore_eos": True}
        if stop := drawn.draw(st.sampled_from([0, 0, 0, 1, 6, 16])):
            structured = Structured(regex=form) if form else None
            given = {"temperature": temperature, "seed": seed, "structured": structured}
            answer = ORACLE.answer(world.setting, prompt, stop, **given)
            params["stop_token_ids"] = [answer[-1].token_id]
        priority = drawn.draw(st.sampled_from([0, 0, -1, 1]))
        self.do(Event("submit", {"prompt": prompt, "priority": priority, "params": params, "seed": seed}))

    @rule(count=st.integers(1, 8))
    def step(self, count: int) -> None:
        self.do(Event("step", {"count": count}))

    @precondition(lambda self: self.world.requests)
    @rule(
        among=st.sampled_from(["running", "unfinished", "requests"]),
        which=st.lists(st.integers(0, 9), min_size=1, max_size=3),
    )
    def cancel(self, among: str, which: list[int]) -> None:
        for place in which:
            if ids := list(getattr(self.world, among)):
                self.do(Event("cancel", {"request": ids[place % len(ids)]}))

    @precondition(lambda self: len(self.world.unfinished) > 3)
    @rule()
    def drain(self) -> None:
        self.do(Event("drain"))

    def teardown(self) -> None:
        if not self.failed:
            self._guarded(self.world.finish)
            type(self).covered.update(self.world.covered)


def fuzz(
    model_name: str,
    profile: settings,
    failures: Path,
    *,
    drafter_names: Sequence[str] = (),
    seed: int | None = None,
) -> Counter[str]:
    """Runs with one model and one of these drafters, or of all; what they covered. The script of a failure is
    written to `failures`."""

    class Machine(EngineMachine):
        model = model_name
        drafters = drafter_names or drafters(model_name)
        covered: ClassVar[Counter[str]] = Counter()

    if seed is not None:
        hypothesis.seed(seed)(Machine)
    try:
        run_state_machine_as_test(Machine, settings=profile)
    except Exception as error:
        if Machine.failure is not None:
            Machine.failure.write(failures)
            error.add_note(f"to see it again: python -m tests.fuzz replay {failures}")
        raise
    return Machine.covered


def table(covered: Counter[str]) -> str:
    return "\n".join(f"{count:>10,}  {what}" for what, count in sorted(covered.items()))
