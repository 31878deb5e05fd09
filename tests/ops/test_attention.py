"""Paged attention over lanes of any length, against a softmax in float64 that sees one token and its keys."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.ops.backend import choose
from holdfast.ops.places import KVState

from .paged import MIXED, SCALE, Paged
from .steps import Lane, ancestors_of, make_step, same_bits

modes = pytest.mark.parametrize("exact", [False, True], ids=["normal", "exact"])


@modes
@pytest.mark.parametrize("page", [1, 3, 7, 16, 64])
def test_lanes_of_every_length_in_one_call(page: int, exact: bool) -> None:
    paged = Paged(MIXED, page=page)
    paged.check(paged.run(exact=exact))


@modes
@pytest.mark.parametrize("heads", [(1, 1), (4, 4), (6, 2), (8, 1), (3, 3)], ids=str)
@pytest.mark.parametrize("dim", [2, 5, 16])
def test_grouped_heads(heads: tuple[int, int], dim: int, exact: bool) -> None:
    paged = Paged([Lane(1, 2, 9), Lane(2, 11, 4)], page=4, heads=heads, dim=dim)
    paged.check(paged.run(exact=exact))


@modes
def test_what_a_step_stores_is_what_the_next_one_reads(exact: bool) -> None:
    """A sequence in pieces, each over the keys that the pieces before it left in the pages."""
    whole = Paged([Lane(1, 37)], page=5, seed=3)
    expected = whole.run(exact=exact)
    pieces = Paged([Lane(1, 37)], page=5, seed=3)
    position = 0
    for count in (1, 3, 4, 10, 2, 9, 0, 1, 7):
        part = Paged([Lane(1, count, position)], page=5)
        part.table, part.pool = pieces.table, pieces.pool
        part.queries = whole.queries[position : position + count]
        part.context = [[known[: position + count] for known in whole.context[0]]]
        out, wanted = part.run(exact=exact), expected[position : position + count]
        torch.testing.assert_close(out, wanted, rtol=0, atol=2e-6)
        position += count
    assert same_bits(pieces.pool.keys, whole.pool.keys) and same_bits(pieces.pool.values, whole.pool.values)


@modes
def test_a_recycled_page_leaks_nothing(exact: bool) -> None:
    """Beyond the valid length the last tenant's bytes are NaN or huge; the outputs are the same bits."""
    results = []
    for left_behind in (torch.nan, torch.inf, 1e30, 0.0):
        paged = Paged(MIXED, page=16)
        for part in paged.pool:
            part[1:] = torch.where(part[1:].isnan(), left_behind, part[1:])
        results.append(paged.run(exact=exact))
    paged.check(results[0])
    assert all(same_bits(results[0], other) for other in results[1:])


@modes
def test_in_a_tree_a_node_sees_its_ancestors_only(exact: bool) -> None:
    lanes = [Lane(1, 4, 6), Lane(0, 2), Lane(2, 3), Lane(3, 1, 20), Lane(4, 9, 2)]
    tree = ancestors_of([[-1, 0, 0, 1], [-1, -1], [-1, -1, 1], [-1]], 4)
    paged = Paged(lanes, page=4)
    paged.check(paged.run(exact=exact, tree=tree), tree)


@modes
def test_no_lanes(exact: bool) -> None:
    assert Paged([], page=4).run(exact=exact).shape == (0, 4, 8)


@settings(derandomize=True, max_examples=40, deadline=None)
@given(st.data())
def test_any_lanes(data: st.DataObject) -> None:
    rows = data.draw(st.permutations(range(1, 4)))[: data.draw(st.integers(0, 3))]
    sizes, positions = st.integers(0, 12), st.integers(0, 30)
    lanes = [Lane(row, data.draw(sizes), data.draw(positions)) for row in rows]
    lanes += [Lane(0, data.draw(sizes)) for _ in range(data.draw(st.integers(0, 2)))]
    lanes.sort(key=lambda lane: lane.is_run)
    heads = data.draw(st.sampled_from([(2, 1), (3, 3)]))
    paged = Paged(lanes, page=data.draw(st.integers(1, 9)), heads=heads)
    paged.check(paged.run(exact=data.draw(st.booleans())))


@modes
def test_values_may_be_channels_of_what_is_kept_as_keys(exact: bool) -> None:
    """Latents, of which all heads read the same: one tensor in the pages, the values its first channels."""
    lanes = [Lane(1, 2, position=5), Lane(0, 1), Lane(2, 1), Lane(3, 40, position=9)]
    paged = Paged(lanes, page=4, heads=(3, 1), dim=8)
    pool = KVState(paged.pool.keys, paged.pool.keys[..., :0])
    fresh = torch.cat(
        [keys[lane.position :, 0] for lane, (keys, _) in zip(lanes, paged.context, strict=True)]
    )
    out = choose("reference", exact=exact).latent_attention(
        paged.queries, fresh, pool, paged.table, make_step(lanes), SCALE, value_dim=5
    )
    paged.context = [[keys, keys[..., :5]] for keys, _ in paged.context]
    paged.check(out)
