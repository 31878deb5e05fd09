"""Exact mode: a token's bits depend on its own past alone, whoever shares the step and wherever it stands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from holdfast.config import journal_capacity
from holdfast.ops.attention.heads import Heads as Scores
from holdfast.ops.backend import Ops, choose
from holdfast.ops.places import KVState, TemporalState
from holdfast.ops.step import StateStep

from .steps import (
    GRID,
    WINDOW,
    Heads,
    Lane,
    conv_pool,
    delta_inputs,
    delta_pool,
    make_step,
    same_bits,
    seeded,
)

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
        "linear per head, turned": lambda x: ops.linear_per_head(heads(x), weight(2, half, 9).mT),
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
    alone = op(token[None])[0]
    assert same_bits(op(company)[place], alone)
    assert same_bits(op(shifted(company))[place], alone)


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


# --- wherever it lies in memory ---

HEADS, TOKENS = 2, 40
CUTS = ([TOKENS], [1] * TOKENS, [4, 1, 3, 2] * 4, [17, 3, 20], [39, 1])
ENTRIES = {
    "gated_delta": ("k", "u", "log_g"),
    "kda": ("k", "u", "log_g"),
    "ssd": ("x", "b", "dt", "log_decay"),
    "selective_scan": ("x", "b", "dt"),
}
orders = pytest.mark.parametrize("backend", ["reference", "reference_kv"])
sizes = pytest.mark.parametrize(("key", "value"), [(13, 33), (32, 16), (16, 64)])


def shifted(x: Tensor) -> Tensor:
    """The same numbers, beginning four bytes after where torch would have begun."""
    return torch.cat((x.new_zeros(1), x.flatten()))[1:].view(x.shape)


def token_shapes(mixer: str, key: int, value: int) -> dict[str, tuple[int, ...]]:
    one, k, v = (HEADS,), (HEADS, key), (HEADS, value)
    return {
        "gated_delta": {"q": k, "k": k, "v": v, "log_g": one, "beta": one},
        "kda": {"q": k, "k": k, "v": v, "log_g": k, "beta": one},
        "ssd": {"x": v, "b": k, "c": k, "dt": one, "log_decay": one},
        "selective_scan": {"x": (value,), "b": (key,), "c": (key,), "dt": (value,)},
    }[mixer]


def tokens_of(mixer: str, key: int, value: int) -> dict[str, Tensor]:
    def drawn(name: str, shape: tuple[int, ...]) -> Tensor:
        noise = torch.randn(TOKENS, *shape, generator=seeded(len(name)))
        if name.startswith("log"):
            return -noise.abs() / 4
        return noise.sigmoid() if name in ("beta", "dt") else noise * shape[-1] ** -0.5

    return {name: drawn(name, shape) for name, shape in token_shapes(mixer, key, value).items()}


def empty_pool(mixer: str, ops: Ops, key: int, value: int, rows: int) -> TemporalState:
    shapes = token_shapes(mixer, key, value)
    shapes["u"] = (HEADS, value)
    along = {"head": HEADS, "key": key, "state": key, "value": value, "channel": value}
    state = [along[axis] for axis in ops.temporal_orders[mixer]]
    ring = (rows + 1, journal_capacity(GRID, WINDOW))
    return TemporalState(
        saved=torch.full((rows + 1, *state), torch.nan),
        journal={name: torch.full((*ring, *shapes[name]), torch.nan) for name in ENTRIES[mixer]},
    )


def in_pieces(
    op: Callable[[dict[str, Tensor], StateStep], Tensor],
    tokens: dict[str, Tensor],
    cuts: Sequence[int],
    row: int,
) -> Tensor:
    """What `op` says of a row's tokens, which begin in memory where they like."""
    outputs, position, base = [], 0, 0
    for count in cuts:
        lane = Lane(row, count, position, base, slot=row)
        piece = {name: x[position : position + count] for name, x in tokens.items()}
        outputs.append(op(piece, make_step([lane])))
        position, base = position + count, lane.end_base(GRID)
    return torch.cat(outputs)


@sizes
@orders
@pytest.mark.parametrize("mixer", ENTRIES)
def test_a_recurrence_gives_the_same_bits_wherever_things_lie(
    mixer: str, backend: str, key: int, value: int
) -> None:
    """Tokens, journal and state, in either order of axes; from the pool, or from a moment ago."""
    tokens, fixed = tokens_of(mixer, key, value), {}
    if mixer == "selective_scan":
        fixed["a"] = -weight(value, key).exp()

    def absorb(ops: Ops, tokens: dict[str, Tensor], cuts: Sequence[int], row: int) -> Tensor:
        pool = empty_pool(mixer, ops, key, value, row)
        op = getattr(ops, mixer)
        return in_pieces(lambda piece, step: op(**piece, **fixed, pool=pool, step=step), tokens, cuts, row)

    wanted = absorb(EXACT, tokens, [TOKENS], row=1)
    elsewhere = {name: shifted(x) for name, x in tokens.items()}
    for row, cuts in enumerate(CUTS, 1):
        found = absorb(choose(backend, exact=True), elsewhere, cuts, row)
        assert same_bits(found, wanted), f"{mixer} in pieces of {cuts}"


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("dim", [13, 16, 33])
def test_attention_gives_the_same_bits_wherever_things_lie(heads: int, dim: int) -> None:
    """Queries, keys and values; pages that follow one another are read where they are."""
    shapes = {"q": 4 * heads, "k": heads, "v": heads}
    tokens = {name: torch.randn(TOKENS, n, dim, generator=seeded(n)) for name, n in shapes.items()}

    def attend(tokens: dict[str, Tensor], cuts: Sequence[int], row: int, page: int) -> Tensor:
        pages = -(-TOKENS // page)
        empty = torch.full(((row + 1) * pages, page, heads, dim), torch.nan)
        pool, table = KVState(empty, empty.clone()), torch.arange(len(empty)).view(row + 1, pages).int()

        def op(piece: dict[str, Tensor], step: StateStep) -> Tensor:
            return EXACT.attention(*piece.values(), Scores(0.5), pool, table, step)

        return in_pieces(op, tokens, cuts, row)

    wanted = attend(tokens, [TOKENS], row=1, page=TOKENS)
    elsewhere = {name: shifted(x) for name, x in tokens.items()}
    for row, cuts in enumerate(CUTS, 1):
        assert same_bits(attend(elsewhere, cuts, row, page=5), wanted), f"in pieces of {cuts}"
