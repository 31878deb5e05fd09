"""Stamps: a position, and a hash of the tokens up to it."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from holdfast.memory.stamps import VOID, Chains, Stamps, position_of

CPU = torch.device("cpu")
tokens = st.lists(st.integers(0, 200_000), min_size=1, max_size=12)


def stamps_of(listed: list[int]) -> list[int]:
    chains = Chains(1, 16, CPU)
    chains.start(1, tuple(listed))
    positions = torch.arange(len(listed) + 1)
    return [int(x) for x in chains.at(torch.ones_like(positions), positions)]


@given(tokens)
def test_a_stamp_says_its_position(listed: list[int]) -> None:
    assert [position_of(stamp) for stamp in stamps_of(listed)] == list(range(len(listed) + 1))


@given(tokens, st.integers(0, 12))
def test_tokens_that_the_device_chose_count_like_those_the_host_sent(listed: list[int], known: int) -> None:
    chains = Chains(2, 16, CPU)
    chains.start(2, tuple(listed[:known]))
    row = torch.tensor([2])
    for position, token in list(enumerate(listed))[known:]:
        chains.extend(row, torch.tensor([position]), torch.tensor([token]))
    positions = torch.arange(len(listed) + 1)
    assert chains.at(row.expand_as(positions), positions).tolist() == stamps_of(listed)
    places = torch.arange(len(listed))
    assert not chains.differ(row.expand_as(places), places, torch.tensor(listed)).any()
    assert chains.differ(row.expand_as(places), places, torch.tensor(listed) + 1).all()


@given(tokens, tokens)
def test_other_tokens_give_other_stamps(a: list[int], b: list[int]) -> None:
    common = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    one, other = stamps_of(a), stamps_of(b)
    assert one[: common + 1] == other[: common + 1]
    assert not set(one[common + 1 :]) & set(other[common + 1 :])


@given(st.permutations(range(6)))
def test_the_order_of_tokens_matters(order: list[int]) -> None:
    assert (stamps_of(list(order))[-1] == stamps_of(list(range(6)))[-1]) == (list(order) == list(range(6)))


def test_a_new_tenant_s_chain_is_its_own() -> None:
    chains = Chains(1, 16, CPU)
    chains.start(1, (5, 6, 7))
    chains.start(1, (8,))
    assert int(chains.at(torch.tensor([1]), torch.tensor([1]))) == stamps_of([8])[1]


def test_some_states_are_read_written_and_cleared_without_the_others() -> None:
    stamps = Stamps.void([("a", "x"), ("b", "x"), ("c", "x")], 6, CPU)
    stamps.write([2, 0], torch.tensor([1, 4]), torch.tensor([7, 8]))
    assert stamps.read([0, 1, 2], torch.tensor([4, 1])).tolist() == [[8, 7], [VOID, VOID], [8, 7]]
    stamps.write([0, 1, 2], torch.tensor([5]), torch.tensor([9]))
    assert stamps.read([1], torch.tensor([5, 4])).tolist() == [[9, VOID]]
    stamps.clear(torch.tensor([2]), 2)  # places 4 and 5
    nothing = [VOID] * 6
    left = [VOID, 7, VOID, VOID, VOID, VOID]
    assert stamps.read([0, 1, 2], torch.arange(6)).tolist() == [left, nothing, left]
    assert position_of(VOID) == VOID
