"""Acceptance: which drafts, and that what comes out has the distribution it has without any."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from holdfast.ops.acceptance.reference import count_accepted
from holdfast.ops.sampling.reference import SamplingRows, sample, truncate

REQUESTS, VOCAB, DEPTH = 120_000, 6, 3


def test_drafts_are_accepted_up_to_the_first_difference() -> None:
    drafts = torch.tensor([[1, 2, 3], [1, 9, 3], [9, 2, 3], [1, 2, 3], [1, 2, 3]])
    chosen = torch.tensor([[1, 2, 3, 4]]).expand(5, -1)
    count = torch.tensor([3, 3, 3, 2, 0])
    assert count_accepted(drafts=drafts, chosen=chosen, count=count).tolist() == [3, 1, 0, 2, 0]


def test_nothing_to_accept() -> None:
    none = torch.zeros(3, 0, dtype=torch.int64)
    assert count_accepted(drafts=none, chosen=torch.ones(3, 1), count=torch.zeros(3)).tolist() == [0, 0, 0]


def transition(generator: torch.Generator) -> Tensor:
    """Logits after each token."""
    return 1.3 * torch.randn(VOCAB, VOCAB, generator=generator)


def rows(seed: Tensor, position: int) -> SamplingRows:
    count = len(seed)
    return SamplingRows(
        temperature=torch.full((count,), 0.9),
        top_k=torch.zeros(count, dtype=torch.int64),
        top_p=torch.full((count,), 0.9),
        min_p=torch.zeros(count),
        seed=seed,
        position=torch.full((count,), position),
    )


@pytest.mark.parametrize("drafter", ["always the likeliest", "another model, the same noise", "at random"])
def test_what_is_kept_has_the_distribution(drafter: str) -> None:
    """A chain of tokens, each of which depends on the one before: pairs of the first and second that a window keeps,
    and the third, have the probabilities of the model, with top_p, to well below a percent."""
    generator = torch.Generator().manual_seed(0)
    logits, other = transition(generator), transition(generator)
    seed = torch.arange(REQUESTS) * 7919 + 3
    last = torch.zeros(REQUESTS, dtype=torch.int64)
    drafts = []
    for place in range(DEPTH):
        before = drafts[-1] if drafts else last
        if drafter == "always the likeliest":
            drafts.append(logits[before].argmax(-1))
        elif drafter == "at random":
            drafts.append(torch.randint(VOCAB, (REQUESTS,), generator=generator))
        else:
            drafts.append(sample(0.5 * (logits + other)[before], rows(seed, 1 + place)))
    contexts = [last, *drafts]
    chosen = torch.stack([sample(logits[c], rows(seed, 1 + i)) for i, c in enumerate(contexts)], 1)
    accepted = count_accepted(
        drafts=torch.stack(drafts, 1), chosen=chosen, count=torch.full((REQUESTS,), DEPTH)
    )
    assert 0.05 < float((accepted > 0).float().mean()) < 0.95
    tokens = chosen.clone()
    for place in range(1, DEPTH + 1):  # what a later window would choose after the bonus
        redo = accepted < place
        fresh = sample(logits[tokens[:, place - 1]], rows(seed, 1 + place))
        tokens[:, place] = torch.where(redo, fresh, tokens[:, place])
    full = torch.full((VOCAB,), VOCAB)
    kept = truncate(logits / 0.9, full, torch.full((VOCAB,), 0.9), torch.zeros(VOCAB)).double().softmax(-1)
    pairs = (kept[0][:, None] * kept).flatten()
    third = kept[0] @ kept @ kept
    assert_distribution((tokens[:, 0] * VOCAB + tokens[:, 1]), pairs)
    assert_distribution(tokens[:, 2], third)


def assert_distribution(tokens: Tensor, probability: Tensor) -> None:
    """Chi-square; a shift of one percent of the mass would be at least twice the bound."""
    counts, wanted = np.bincount(tokens.numpy(), minlength=len(probability)), probability.numpy()
    assert not counts[wanted == 0].any()
    expected = wanted[wanted > 0] * len(tokens)
    chi = float(((counts[wanted > 0] - expected) ** 2 / expected).sum())
    degrees = len(expected) - 1
    bound = degrees + 4 * np.sqrt(2 * degrees) + 4
    assert chi < bound, f"chi-square {chi:.1f} of {degrees} degrees"
    moved = counts.astype(float)[wanted > 0]
    high, low = int(expected.argmax()), int(expected.argmin())
    moved[high] -= 0.01 * len(tokens)
    moved[low] += 0.01 * len(tokens)
    assert float(((moved - expected) ** 2 / expected).sum()) > 2 * bound, "the test could not see one percent"
