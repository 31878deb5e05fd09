"""Exact mode: a token's bits depend on its own past alone, whoever shares the step and wherever it stands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from holdfast.ops.attention.heads import Heads as Scores
from holdfast.ops.backend import Ops, choose
from holdfast.ops.places import KVState

from .steps import Heads, Lane, conv_pool, delta_inputs, delta_pool, make_step, same_bits, seeded

EXACT = choose("reference", exact=True)
Op = Callable[[Tensor], Tensor]


def weight(*shape: int) -> Tensor:
    return torch.randn(shape, generator=seeded(sum(shape)))


def rowwise(ops: Ops, width: int) -> dict[str, Op]:
    """Operations on tokens [n, width]; where they take heads, two of them."""
    half = width // 2
    per_token = weight(width)

    def heads(x: Tensor) -> Tensor:
        return x.unflatten(-1, (2, half))

    return {
        "linear": lambda x: ops.linear(x, weight(7, width)),
        "wide linear": lambda x: ops.linear(x, weight(300, width), weight(300)),
        "linear per head": lambda x: ops.linear_per_head(heads(x), weight(2, 9, half)),
        "rms_norm": lambda x: ops.rms_norm(x, per_token, 1e-6),
        "rms_norm of heads": lambda x: ops.rms_norm(heads(x), weight(half), 1e-6, zero_centred=True),
        "gated_rms_norm": lambda x: ops.gated_rms_norm(heads(x), heads(x).flip(-1), weight(half), 1e-6),
        "gate first": lambda x: ops.gated_rms_norm(x, x.flip(-1), per_token, 1e-6, gate_first=True),
        "l2_norm": lambda x: ops.l2_norm(heads(x)),
        "silu": ops.silu,
        "gelu": ops.gelu,
        "sigmoid": lambda x: ops.sigmoid(heads(x)),
        "softplus": ops.softplus,
        "log_softmax": ops.log_softmax,
        "rotate": lambda x: ops.rotate(heads(x), x[:, : half // 2].cos(), x[:, : half // 2].sin()),
    }


NAMES = list(rowwise(EXACT, 8))


def assert_rows_independent(op: Op, token: Tensor, count: int, place: int) -> None:
    """`token` alone, and as number `place` among `count` others."""
    company = 3 * torch.randn(count, *token.shape, generator=seeded(count))
    company[place] = token
    assert same_bits(op(company)[place], op(token[None])[0])


@pytest.mark.parametrize("name", NAMES)
@settings(derandomize=True, max_examples=25, deadline=None)
@given(data=st.data())
def test_an_operation_gives_a_token_the_same_bits_anywhere(name: str, data: st.DataObject) -> None:
    width = 2 * data.draw(st.integers(2, 70))
    count = data.draw(st.integers(1, 130))
    token = 3 * torch.randn(width, generator=seeded(data.draw(st.integers(0, 50))))
    assert_rows_independent(rowwise(EXACT, width)[name], token, count, data.draw(st.integers(0, count - 1)))


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("count", "width"), [(2, 6144), (3, 4096), (5, 6144)])
def test_no_place_in_a_block_is_special_when_threads_divide_it(name: str, count: int, width: int) -> None:
    """Wide enough for torch to divide a block within a row; all rows are alike, so every place must agree."""
    token = 3 * torch.randn(width, generator=seeded(count))
    op = rowwise(EXACT, width)[name]
    with threads(count):
        alone, together = op(token[None])[0], op(token.repeat(32, 1))
    assert all(same_bits(row, alone) for row in together)


# --- over lanes ---


def serve(lanes: list[Lane], tokens: dict[int, dict[str, Tensor]], heads: Heads) -> dict[int, list[Tensor]]:
    """Every stateful operation over one step of cold lanes: {row: [outputs of each]}"""
    step = make_step(lanes)
    rows, longest = max(lane.row for lane in lanes), max(lane.count for lane in lanes)
    flat = {name: torch.cat([tokens[lane.row][name][: lane.count] for lane in lanes]) for name in tokens[1]}
    x = flat.pop("x")
    table = torch.arange(rows + 1)[:, None].int()
    empty = torch.full((rows + 1, longest + 1, heads.keys, heads.key_dim), torch.nan)
    channels = heads.keys * heads.key_dim
    outputs = [
        EXACT.gated_delta(**flat, pool=delta_pool(rows, rows, heads), step=step),
        EXACT.causal_conv(x, weight(channels, 4), None, conv_pool(rows, rows, channels, 4), step),
        EXACT.attention(
            flat["q"], flat["k"], flat["k"], Scores(0.5), KVState(empty, empty.clone()), table, step
        ),
    ]
    first = step.offsets.tolist()
    return {lane.row: [out[first[i] : first[i + 1]] for out in outputs] for i, lane in enumerate(lanes)}


@settings(derandomize=True, max_examples=25, deadline=None)
@given(data=st.data())
def test_a_lane_gets_the_same_bits_in_any_company(data: st.DataObject) -> None:
    """Alone, among others, in another place, and with fewer tokens in its step."""
    heads = data.draw(st.sampled_from([Heads(1, 1, 4, 4), Heads(1, 3, 7, 5), Heads(2, 4, 64, 32)]))
    tokens = {}
    for row in range(6):
        tokens[row] = delta_inputs(24, heads, seed=row)
        tokens[row]["x"] = tokens[row]["q"].flatten(1)
    mine = Lane(1, data.draw(st.integers(1, 24)), slot=1)
    count = st.integers(0, 24)
    others = [Lane(row, data.draw(count), slot=row) for row in range(2, data.draw(st.integers(2, 6)))]
    others += [Lane(0, 3)] * data.draw(st.integers(0, 2))
    lanes = sorted(data.draw(st.permutations([mine, *others])), key=lambda lane: lane.is_run)
    alone, together = serve([mine], tokens, heads)[1], serve(lanes, tokens, heads)[1]
    assert all(same_bits(a, b) for a, b in zip(alone, together, strict=True))
    shorter = Lane(1, data.draw(st.integers(1, mine.count)), slot=1)
    for whole, part in zip(alone, serve([shorter], tokens, heads)[1], strict=True):
        assert same_bits(whole[: shorter.count], part)
