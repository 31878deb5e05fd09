"""Acceptance in trees, against a walk from node to node."""

from __future__ import annotations

import random

import pytest
import torch

from holdfast.ops.acceptance.reference import Drafts, accept
from holdfast.ops.acceptance.trees import accept_tree
from holdfast.ops.step import Tree

MOST, VOCAB = 6, 3


def walked(tokens: list[int], parents: list[int], chosen: list[int], meant: int) -> list[int]:
    """The nodes below the root that are accepted. Of children alike the first is taken."""
    path, at = [], 0
    while True:
        children = [
            node for node in range(1, meant + 1) if parents[node - 1] == at and tokens[node - 1] == chosen[at]
        ]
        if not children:
            return path
        at = children[0]
        path.append(at)


@pytest.mark.parametrize("seed", range(20))
def test_the_path_that_was_chosen_is_accepted(seed: int) -> None:
    rng, rows = random.Random(seed), 4
    drafts = [rng.randint(0, MOST) for _ in range(rows)]
    tokens = [[rng.randrange(VOCAB) for _ in range(MOST)] for _ in range(rows)]
    parents = [[rng.randint(0, node) for node in range(MOST)] for _ in range(rows)]
    chosen = [[rng.randrange(VOCAB) for _ in range(count + 1)] for count in drafts]
    made, position = [rng.randint(0, MOST) for _ in range(rows)], [rng.randint(0, 9) for _ in range(rows)]
    table = torch.full((rows + 1, 32), -1)
    for row in range(rows):
        begin = position[row] + 1
        table[row + 1, begin : begin + MOST] = torch.tensor(tokens[row])
    first = [sum(count + 1 for count in drafts[:row]) for row in range(rows)]
    given = Drafts(
        *(torch.tensor(x) for x in (range(rows), drafts, first, range(1, rows + 1))),  # type: ignore[arg-type]
        most=max(drafts),
    )
    counts = torch.tensor(drafts) + 1
    told, found = torch.tensor([0, *made]), table.clone()
    walk = accept_tree(
        given,
        torch.tensor([token for each in chosen for token in each]),
        found,
        told,
        torch.tensor([[0] * MOST, *parents]),
        torch.tensor(position),
        counts,
    )
    for row in range(rows):
        meant = min(drafts[row], made[row])
        path = walked(tokens[row], parents[row], chosen[row], meant)
        assert int(walk.verified.proposed[row]) == meant
        assert int(walk.verified.accepted[row]) == len(path)
        assert int(walk.verified.certain[row]) == 1 + len(path)
        assert walk.path[row, : len(path) + 1].tolist() == [0, *path]
        gained = [chosen[row][node] for node in (0, *path)]
        begin, end = position[row] + 1, position[row] + 2 + len(path)
        assert found[row + 1, begin:end].tolist() == gained
        assert torch.equal(found[row + 1, end:], table[row + 1, end:]), "nothing beyond the bonus is written"
    assert told.tolist() == [0] * (rows + 1)


@pytest.mark.parametrize("seed", range(5))
def test_a_chain_is_a_tree(seed: int) -> None:
    rng = random.Random(seed)
    table = torch.tensor([[rng.randrange(VOCAB) for _ in range(20)] for _ in range(3)])
    drafts = Drafts(torch.arange(2), torch.tensor([4, 2]), torch.tensor([0, 5]), torch.tensor([1, 2]), most=4)
    chosen, position, counts = (
        table[1:, 4:9].flatten()[:8].clone(),
        torch.tensor([3, 3]),
        torch.tensor([5, 3]),
    )
    chosen[rng.randrange(5)] += 1
    made = torch.tensor([0, 4, 4])
    one, other = table.clone(), table.clone()
    wanted = accept(drafts, chosen, one, made.clone(), position, counts)
    found = accept_tree(drafts, chosen, other, made, torch.arange(4).expand(3, 4), position, counts).verified
    assert torch.equal(found.accepted, wanted.accepted) and torch.equal(found.certain, wanted.certain)
    assert torch.equal(one, other)


def test_ancestors_and_depths_of_parents() -> None:
    rng, nodes = random.Random(0), 9
    parents = [[0] + [rng.randint(0, node - 1) for node in range(1, nodes)] for _ in range(8)]
    tree = Tree.of(torch.tensor(parents))
    for lane, follows in enumerate(parents):
        for node in range(nodes):
            seen, at = {node}, node
            while at:
                at = follows[at]
                seen.add(at)
            assert set(tree.ancestors[lane, node].nonzero().flatten().tolist()) == seen
            assert int(tree.depths[lane, node]) == len(seen) - 1
