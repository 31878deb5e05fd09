"""No drafter shifts a distribution: over many seeds, answers come as often as an independent sampler says.

The runner is the real one, with thousands of rows; the model is a table, in which the logits after a token depend on
that token alone. (That each seed draws the very text that it draws without drafts, is shown elsewhere; here nothing
is taken from the sampler itself.)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.models.conformance import slow_but
from tests.sampling import oracle
from torch import Tensor, nn
from torch.nn import functional as F

from holdfast import SamplingParams
from holdfast.config import Limits
from holdfast.executor.runner import Runner
from holdfast.executor.sampler import Chosen
from holdfast.ids import Row, Slot
from holdfast.ops.backend import REFERENCE
from holdfast.plan import RowStart, RowWork, StepPlan, Window
from holdfast.spec.dflash import DFlash
from holdfast.spec.drafter import Draft, Drafter, VerifiedStep, all_meant
from holdfast.spec.ensemble import Ensemble

VOCAB, ANSWER, DEPTH = 6, 3, 4
PROMPT = (2, 5)
ROWS = 60_000
"""Each with a seed of its own: a shift by 0.01 in one place stands out from chance at one in a million."""
MOST = len(PROMPT) + ANSWER * (DEPTH + 1)
"""Tokens that a row may come to have."""
LIMITS = Limits(
    max_num_seqs=ROWS,
    max_num_batched_tokens=ROWS * (DEPTH + 1),
    max_model_len=MOST,
    vocab_size=VOCAB,
    page_size=32,
    num_pages=1,
    num_slots=0,
    fold_every=32,
    max_window=DEPTH + 1,
)
LOGITS = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(1))
GUESSES = LOGITS + 0.7 * torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(2))
PARAMS = {
    "top-p": SamplingParams(temperature=0.9, top_p=0.85),
    "penalties": SamplingParams(
        temperature=1.1, top_p=0.95, repetition_penalty=1.3, frequency_penalty=0.5, presence_penalty=0.2
    ),
}


class OneHot(nn.Module):
    def forward(self, tokens: Tensor) -> Tensor:
        return F.one_hot(tokens, VOCAB).float()


class Table(nn.Module):
    """A token's hidden vector says which it is."""

    ops = REFERENCE

    def __init__(self) -> None:
        super().__init__()
        self.embed = OneHot()

    def features(self, batch: Any, layers: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        hidden = self.embed(batch.tokens)
        return hidden, hidden[:, None, :0]

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden @ LOGITS

    def state_specs(self) -> dict[str, Any]:
        return {}

    kv_specs = state_specs


class Chain(Drafter):
    """Draws from another table, with the noise by which the model's own choice is made."""

    def propose(self, step: VerifiedStep) -> Draft:
        token, drafts = step.last, []
        for by in range(step.depth):
            token = step.choose(GUESSES[token], by + 1)
            drafts.append(token)
        return all_meant(torch.stack(drafts, 1))


class Branches(Drafter):
    """Two guesses after the last token, and two after each of those... as far as there are nodes."""

    branches = True

    def propose(self, step: VerifiedStep) -> Draft:
        nodes, parents = [step.last], []
        for node in range(step.depth):
            parent, rank = divmod(node, 2)
            nodes.append(GUESSES[nodes[parent]].topk(2).indices[:, rank])
            parents.append(torch.full_like(step.last, parent))
        count = torch.full_like(step.last, step.depth)
        return Draft(torch.stack(nodes[1:], 1), count, torch.stack(parents, 1))


class Mixing(nn.Module):
    """The head of a block: in each further place it knows less of the last token."""

    def forward(self, embedding: Tensor, batch: Any) -> Tensor:
        blocks = embedding.unflatten(0, (len(batch.step.rows), -1))
        known = [blocks[:, 0]]
        for _ in range(blocks.shape[1] - 1):
            known.append(0.7 * known[-1] + 0.3 * known[-1] @ LOGITS.softmax(-1))
        return torch.stack(known, 1).flatten(0, 1)

    def context(self, layers: tuple[Tensor, ...]) -> None:
        pass

    def keep(self, context: None, batch: Any) -> None:
        pass


def _block(depth: int) -> Drafter:
    return DFlash(depth, Mixing(), Table(), (), 0)  # type: ignore[arg-type]


KINDS: dict[str, Callable[[int], Drafter]] = {"chain": Chain, "tree": Branches, "dflash": _block}


def answers(drafter: Drafter, params: SamplingParams) -> tuple[NDArray[np.int64], float]:
    """[ROWS, ANSWER]; and how many of the first windows' drafts were accepted."""
    model: Any = Table()
    runner = Runner(Ensemble(model, drafter), LIMITS, torch.device("cpu"))
    rows = [Row(row) for row in range(1, ROWS + 1)]
    starts = (RowStart(r, 1, PROMPT, Slot(0), Slot(0), 0, params, r, len(PROMPT)) for r in rows)
    prompts = tuple(RowWork(row, 1, len(PROMPT), Window()) for row in rows)
    windows = tuple(RowWork(row, 1, DEPTH + 1, Window(DEPTH)) for row in rows)
    certain = {"positions": (0,) * ROWS, "uncertain": (0,) * ROWS}
    anywhere = {"positions": (MOST - DEPTH - 1,) * ROWS, "uncertain": (MOST,) * ROWS}
    runner.launch(StepPlan(0, starts=tuple(starts), work=prompts, propose=DEPTH, **certain))
    stood = []
    for step in range(1, ANSWER):  # each brings a token at least
        runner.launch(StepPlan(step, work=windows, propose=DEPTH, **anywhere))
        stood.append(int(runner.state.cursors.length.sum()))
    accepted = stood[0] - ROWS * (len(PROMPT) + 1)
    found = runner.tables.tokens[1:, len(PROMPT) : len(PROMPT) + ANSWER].numpy()
    return found, accepted / (ROWS * DEPTH)


def expected(params: SamplingParams) -> NDArray[np.float64]:
    """[VOCAB] * ANSWER: of every answer, by the definitions alone."""
    chances = np.zeros((VOCAB,) * ANSWER)
    for answer in itertools.product(range(VOCAB), repeat=ANSWER):
        chance = 1.0
        for place, token in enumerate(answer):
            text = (*PROMPT, *answer[:place])
            logits = oracle.adjusted(LOGITS[text[-1]].double().numpy(), params, PROMPT, answer[:place])
            chance *= oracle.distribution(logits, params)[token]
        chances[answer] = chance
    return chances


def worst(found: NDArray[np.int64], chances: NDArray[np.float64]) -> float:
    """Of every place by itself, and of whole answers: how far from what chance would do."""
    counts = np.zeros(chances.shape, dtype=np.int64)
    np.add.at(counts, tuple(found.T), 1)
    return max(oracle.chi_square(c.ravel(), p.ravel()) for c, p in _views(counts, chances))


def _views(*tables: NDArray[Any]) -> Iterator[tuple[NDArray[Any], ...]]:
    yield tables
    for place in range(ANSWER):
        others = tuple(axis for axis in range(ANSWER) if axis != place)
        yield tuple(table.sum(others) for table in tables)


CASES = [(kind, params) for kind in KINDS for params in PARAMS]
DAILY = [("chain", "penalties"), ("tree", "top-p"), ("dflash", "top-p")]


@pytest.mark.parametrize(("kind", "params"), slow_but(DAILY, CASES))
def test_the_distribution_is_that_of_the_definitions(kind: str, params: str) -> None:
    found, accepted = answers(KINDS[kind](DEPTH), PARAMS[params])
    assert worst(found, expected(PARAMS[params])) < 1
    if (kind, params) == ("tree", "penalties"):  # a penalty weighs a token by the path before it
        assert accepted == 0
    else:
        assert 0.1 < accepted < 0.9, "a test of acceptance needs both"


@pytest.mark.parametrize(
    ("kind", "every"), slow_but([("chain", 20)], [("chain", 20), ("tree", 30), ("dflash", 15)])
)
def test_a_shift_of_one_percent_would_be_seen(kind: str, every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every so many lanes the first draft is accepted unseen."""
    verify = Runner._verify

    def careless(runner: Runner, step: Any, lanes: Any, chosen: Chosen) -> Any:
        drafts = lanes.choices.drafts
        some = (torch.arange(len(drafts.lane)) % every == 0) & (drafts.drafts > 0)
        known = step.position[drafts.lane] + 1
        chosen.tokens[drafts.first[some]] = runner.tables.tokens[drafts.tell, known][some]
        return verify(runner, step, lanes, chosen)

    monkeypatch.setattr(Runner, "_verify", careless)
    params = PARAMS["top-p"]
    found, _ = answers(KINDS[kind](DEPTH), params)
    chances = expected(params)
    second = np.bincount(found[:, 1], minlength=VOCAB) / len(found)
    shift = abs(second - chances.sum((0, 2))).sum() / 2
    assert 0.005 < shift < 0.015
    assert worst(found, chances) > 1
