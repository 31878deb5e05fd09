"""Drafters to test with: they know the answers, or nothing at all. They may wait for the device; others may not."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from holdfast import LLM
from holdfast.engine import Engine
from holdfast.executor.speculation import Speculation
from holdfast.spec.drafter import Draft, Drafter, VerifiedStep


class Guessing(Drafter):
    """Drafts for each lane from its tokens; how many of those it is asked for, is left to chance."""

    def __init__(self, depth: int, seed: int = 0) -> None:
        super().__init__(depth)
        self.random = random.Random(seed)

    def guess(self, tokens: list[int]) -> list[int]:
        """`depth` of them."""
        raise NotImplementedError

    def propose(self, step: VerifiedStep) -> Draft:
        positions = step.position.tolist()
        known = [
            step.tokens[row, : position + 1].tolist()
            for row, position in zip(step.rows.tolist(), positions, strict=True)
        ]
        depth = step.depth
        counts = [self.random.choice([depth, self.random.randint(0, depth)]) for _ in known]
        return Draft(torch.tensor([self.guess(tokens)[:depth] for tokens in known]), torch.tensor(counts))


class Blind(Guessing):
    """Guesses at random."""

    def guess(self, tokens: list[int]) -> list[int]:
        return [self.random.randrange(8) for _ in range(self.depth)]


class Knowing(Guessing):
    """Right with a probability, and never by mistake: with 0 it is always wrong."""

    def __init__(self, depth: int, texts: Sequence[Sequence[int]], right: float) -> None:
        super().__init__(depth)
        self.texts = [list(text) for text in texts]
        self.right = right

    def guess(self, tokens: list[int]) -> list[int]:
        text = next((text for text in self.texts if text[: len(tokens)] == tokens), tokens)
        following = (text[len(tokens) :] + [0] * self.depth)[: self.depth]
        return [token if self.random.random() < self.right else token ^ 1 for token in following]


class KnowingTree(Knowing):
    """Trees of any shape; a node is right with a probability, if those above it are."""

    branches = True

    def propose(self, step: VerifiedStep) -> Draft:
        known = [
            step.tokens[row, : position + 1].tolist()
            for row, position in zip(step.rows.tolist(), step.position.tolist(), strict=True)
        ]
        trees = [self._grow(tokens) for tokens in known]
        counts = [self.random.choice([self.depth, self.random.randint(0, self.depth)]) for _ in known]
        drafts, parents = (torch.tensor([tree[part] for tree in trees]) for part in range(2))
        return Draft(drafts, torch.tensor(counts), parents)

    def _grow(self, tokens: list[int]) -> tuple[list[int], list[int]]:
        """Tokens of the nodes, and what they follow."""
        paths, drafts, parents = [tokens], [], []
        for node in range(self.depth):
            parent = self.random.choice([node, self.random.randint(0, node)])
            [token, *_] = self.guess(paths[parent])
            drafts.append(token)
            parents.append(parent)
            paths.append([*paths[parent], token])
        return drafts, parents


def spoil_drafts(engine: Engine) -> None:
    """Those of every third position: a model that drafts for itself would hardly ever be wrong."""
    drafter: Any = engine.runner.speculation.drafter
    propose = drafter.propose

    def spoilt(step: VerifiedStep) -> Draft:
        draft: Draft = propose(step)
        place = step.position[:, None] + torch.arange(step.depth, device=step.position.device)
        return replace(draft, tokens=torch.where(place % 3 == 0, draft.tokens ^ 1, draft.tokens))

    drafter.propose = spoilt


Following = Callable[[int, list[int]], Sequence[int]]
"""(row, its tokens) -> those that the model will choose next, as far as anybody knows"""


def correct_drafts(engine: Engine, following: Following) -> None:
    """As if a head had been trained: whatever it drafts is right, but at every third position, where it is wrong. Of
    nodes that follow the same one, one is right, and seldom the first. At every fifth position fewer are meant."""
    drafter: Any = engine.runner.speculation.drafter
    propose = drafter.propose

    def corrected(step: VerifiedStep) -> Draft:
        draft: Draft = propose(step)
        tokens = draft.tokens.tolist()
        chain = torch.arange(step.depth).expand_as(draft.tokens)
        parents = (chain if draft.parents is None else draft.parents).tolist()
        for lane, (row, position) in enumerate(zip(step.rows.tolist(), step.position.tolist(), strict=True)):
            known = step.tokens[row, : position + 1].tolist()
            _correct(tokens[lane], parents[lane], position + 1, following(row, known))
        fewer = step.position % (step.depth + 1)
        count = torch.where(step.position % 5 == 0, fewer, draft.count)
        return replace(draft, tokens=draft.tokens.new_tensor(tokens), count=count)

    drafter.propose = corrected


def _correct(tokens: list[int], parents: list[int], first: int, following: Sequence[int]) -> None:
    """In place, from the root down."""
    at = 0
    for place, wanted in enumerate(following, first):
        if not (children := [node for node, parent in enumerate(parents, 1) if parent == at]):
            return
        for node in children:
            tokens[node - 1] = wanted ^ 1 if tokens[node - 1] == wanted else tokens[node - 1]
        at = children[place % len(children)]
        tokens[at - 1] = wanted ^ 1 if place % 3 == 0 else wanted
        if place % 3 == 0:
            return


def speculating(directory: Path, drafter: Drafter, **options: Any) -> LLM:
    """An engine whose windows are filled by this drafter."""
    config = {"method": "ngram", "num_speculative_tokens": drafter.depth}
    llm = LLM(directory, speculative_config=config, **options)
    runner = llm._engine.runner
    runner.speculation = Speculation(runner.model.ops, runner.tables, drafter)
    return llm
