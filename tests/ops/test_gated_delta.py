"""The gated delta rule in its three forms, token by token, in chunks and as a journal; and transformers'."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers.models.qwen3_5 import modeling_qwen3_5 as peer

from holdfast.config import CHUNK
from holdfast.ops.backend import Ops, choose
from holdfast.ops.gated_delta.reference import GatedDelta, recurrent
from holdfast.ops.step import Export

from .steps import Heads, Lane, delta_inputs, delta_pool, make_step, same_bits, seeded

HEADS = [Heads(), Heads(1, 1, 4, 4), Heads(3, 3, 5, 7), Heads(1, 6, 8, 2)]
DECAYS = ["weak", "mild", "strong", "violent", "mixed"]

heads_each = pytest.mark.parametrize("heads", HEADS, ids=["grouped", "one", "odd", "one key head"])
decays = pytest.mark.parametrize("decay", DECAYS)


def by_definition(state: Tensor, inputs: dict[str, Tensor]) -> tuple[np.ndarray, np.ndarray]:
    """float64, one head and one token at a time; state [HV, V, K]"""
    s = state.double().numpy().copy()
    q, k, v, log_g, beta = (inputs[name].double().numpy() for name in ("q", "k", "v", "log_g", "beta"))
    out = np.zeros(v.shape)
    for t in range(len(v)):
        for head in range(v.shape[1]):
            key, query = k[t, head * k.shape[1] // v.shape[1]], q[t, head * k.shape[1] // v.shape[1]]
            decayed = np.exp(log_g[t, head]) * s[head]
            u = beta[t, head] * (v[t, head] - decayed @ key)
            s[head] = decayed + np.outer(u, key)
            out[t, head] = s[head] @ query
    return out, s


def random_state(heads: Heads, seed: int) -> Tensor:
    return torch.randn(heads.values, heads.value_dim, heads.key_dim, generator=seeded(seed))


def close(got: Tensor, expected: np.ndarray | Tensor, tolerance: float = 3e-6) -> None:
    wanted = torch.as_tensor(expected).double()
    scale = 1.0 + wanted.abs().max()
    torch.testing.assert_close(got.double() / scale, wanted / scale, rtol=0, atol=tolerance)


@heads_each
@decays
def test_recurrent_is_the_definition(heads: Heads, decay: str) -> None:
    inputs, state = delta_inputs(40, heads, 1, decay), random_state(heads, 2)
    wanted, end = by_definition(state, inputs)
    outputs, last = recurrent(state.double(), inputs)
    np.testing.assert_allclose(outputs.numpy(), wanted, rtol=0, atol=1e-12)
    np.testing.assert_allclose(last.numpy(), end, rtol=0, atol=1e-12)


def test_recurrent_over_nothing_returns_the_state() -> None:
    state = random_state(Heads(), 3)
    outputs, last = recurrent(state, delta_inputs(0, Heads(), 4))
    assert outputs.shape == (0, 4, 6) and torch.equal(last, state)


@heads_each
@decays
@pytest.mark.parametrize("blocks", [1, 3])
def test_chunks_equal_the_definition(heads: Heads, decay: str, blocks: int) -> None:
    inputs, state = delta_inputs(blocks * CHUNK, heads, 5, decay), random_state(heads, 6)
    outputs, states = GatedDelta().chunk(state, inputs, torch.float32)
    assert len(states) == blocks
    wanted, _ = by_definition(state, inputs)
    close(outputs, wanted)
    for block in range(blocks):
        first = {name: x[: (block + 1) * CHUNK] for name, x in inputs.items()}
        close(states[block], by_definition(state, first)[1])


@heads_each
@decays
def test_chunks_equal_transformers(heads: Heads, decay: str) -> None:
    """transformers scales q by itself, keeps the state [K, V] and wants keys repeated for each value head."""
    inputs, state = delta_inputs(2 * CHUNK, heads, 7, decay), random_state(heads, 8)
    outputs, states = GatedDelta().chunk(state, inputs, torch.float32)
    repeat = heads.values // heads.keys
    q, k = (inputs[name].repeat_interleave(repeat, 1)[None] for name in "qk")
    v, log_g, beta = (inputs[name][None] for name in ("v", "log_g", "beta"))
    forms = {"chunk": peer.torch_chunk_gated_delta_rule, "recurrent": peer.torch_recurrent_gated_delta_rule}
    for form, rule in forms.items():
        theirs, end = rule(
            q * heads.key_dim**0.5, k, v, log_g, beta, initial_state=state.mT[None], output_final_state=True
        )
        # their chunk form takes differences of cumulative sums, which costs it digits at strong decays
        tolerance = 5e-4 if form == "chunk" and decay in ("violent", "mixed") else 1e-5
        close(outputs, theirs[0], tolerance)
        close(states[-1], end[0].mT, tolerance)


def journalled(
    ops: Ops,
    inputs: dict[str, Tensor],
    sizes: list[int],
    heads: Heads,
    dtype: torch.dtype,
    start: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """One row through windows and runs of these sizes: outputs, and the checkpoint after the last line."""
    pool = delta_pool(1, 1, heads, dtype=dtype)
    position = base = 0
    if start is not None:
        position = base = CHUNK  # any line will do
        pool.saved[1] = start.to(dtype)
    outputs, done = [], 0
    for count in sizes:
        lane = Lane(1, count, position, base, slot=1)
        part = {name: x[done : done + count] for name, x in inputs.items()}
        outputs.append(ops.gated_delta(**part, pool=pool, step=make_step([lane])))
        position, base, done = position + count, lane.end_base(16), done + count
    return torch.cat(outputs), pool.saved[1]


@heads_each
@decays
@pytest.mark.parametrize("exact", [False, True], ids=["normal", "exact"])
def test_the_journal_equals_the_chunks(heads: Heads, decay: str, exact: bool) -> None:
    """Windows only, against blocks only, from the same checkpoint."""
    inputs, start = delta_inputs(CHUNK, heads, 9, decay), random_state(heads, 10)
    ops = choose("reference", exact=exact)
    outputs, _ = journalled(ops, inputs, [4, 1, 3, 4, 2] * 4 + [4, 4], heads, torch.float32, start)
    by_chunk, states = GatedDelta().chunk(start, inputs, torch.float32)
    close(outputs, by_chunk)
    # the last line is due, but no step has come to fold it
    _, saved = journalled(ops, inputs, [4, 1, 3, 4, 2] * 4 + [4, 4, 0], heads, torch.float32, start)
    close(saved, states[-1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("start", [False, True], ids=["cold", "resumed"])
def test_a_cut_at_a_block_changes_no_bit(dtype: torch.dtype, start: bool) -> None:
    """At once, or in runs that end where a block ends: the state was rounded there anyway."""
    heads = Heads(2, 4, 16, 16)
    inputs = delta_inputs(300, heads, 11)
    state = random_state(heads, 12) if start else None
    ops = choose("reference", exact=False)
    whole, saved = journalled(ops, inputs, [300], heads, dtype, state)
    for cuts in ([64, 236], [128, 128, 44], [192, 108], [64, 64, 64, 64, 44]):
        outputs, end = journalled(ops, inputs, cuts, heads, dtype, state)
        assert same_bits(outputs, whole) and same_bits(end, saved), f"cut at {cuts}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(("backend", "size"), [("reference", 4), ("reference_kv", 4), ("reference", 96)])
def test_in_exact_mode_no_cut_changes_a_bit(dtype: torch.dtype, backend: str, size: int) -> None:
    """Products of small and of large matrices go different ways in torch; square states serve either order."""
    heads = Heads(1, 2, size, size)
    inputs = delta_inputs(100, heads, 13)
    ops = choose(backend, exact=True)
    whole, saved = journalled(ops, inputs, [100], heads, dtype)
    for cuts in ([1] * 20 + [80], [4, 3, 2, 1] * 10, [64, 36], [99, 1], [7, 70, 4, 19]):
        outputs, end = journalled(ops, inputs, cuts, heads, dtype)
        assert same_bits(outputs, whole), f"cut at {cuts}"
        assert same_bits(end, saved)


def test_the_second_axis_order_gives_the_same_states_the_other_way_round() -> None:
    heads = Heads(1, 2, 5, 3)
    inputs = delta_inputs(100, heads, 14)
    step = make_step([Lane(1, 100, slot=1)], exports=(Export(0, 2, 64),))
    plain, swapped = delta_pool(1, 2, heads), delta_pool(1, 2, heads, swapped=True)
    first = choose("reference", exact=False).gated_delta(**inputs, pool=plain, step=step)
    second = choose("reference_kv", exact=False).gated_delta(**inputs, pool=swapped, step=step)
    assert same_bits(first, second)
    assert same_bits(plain.saved[1:], swapped.saved[1:].mT)
    assert plain.saved[1:].isfinite().all()


@pytest.mark.parametrize("exact", [False, True], ids=["normal", "exact"])
def test_lanes_of_every_kind_in_one_step(exact: bool) -> None:
    """A cold window, a window over a checkpoint, padding, a cold run and a resumed one; each as if alone."""
    heads, pool = Heads(), delta_pool(5, 5, Heads())
    starts = {2: random_state(heads, 20), 5: random_state(heads, 21)}
    for slot, state in starts.items():
        pool.saved[slot] = state
    lanes = [
        Lane(1, 3, slot=1),
        Lane(2, 4, 32, 32, slot=2),
        Lane(0, 2),
        Lane(4, 70, slot=4),
        Lane(5, 80, 48, 48, slot=5),
    ]
    inputs = delta_inputs(sum(lane.count for lane in lanes), heads, 22)
    step = make_step(lanes)
    out = choose("reference", exact=exact).gated_delta(**inputs, pool=pool, step=step)
    for lane, first in zip(lanes, step.offsets.tolist()[:-1], strict=True):
        mine = {name: x[first : first + lane.count] for name, x in inputs.items()}
        if not lane.row:
            assert out[first : first + lane.count].isnan().all()
            continue
        cold = torch.zeros(heads.values, heads.value_dim, heads.key_dim)
        wanted, _ = by_definition(starts.get(lane.slot, cold), mine)
        close(out[first : first + lane.count], wanted)
        if lane.is_run:
            kept = {name: x[: lane.end_base(16) - lane.position] for name, x in mine.items()}
            close(pool.saved[lane.slot], by_definition(starts.get(lane.slot, cold), kept)[1])
    assert pool.saved[0].isnan().all() and all(ring[0].isnan().all() for ring in pool.journal.values())


def test_keys_in_bfloat16_are_the_same_bits_in_window_journal_and_chunk() -> None:
    """The caller rounds k; whatever form a token takes, it then uses that k and no finer one."""
    heads = Heads(1, 2, 8, 8)
    inputs = delta_inputs(CHUNK, heads, 15)
    inputs["k"] = inputs["k"].bfloat16()
    pools = [delta_pool(1, 1, heads) for _ in range(2)]
    for pool in pools:
        pool.journal["k"] = pool.journal["k"].bfloat16()
    wanted, _ = by_definition(torch.zeros(2, 8, 8), inputs)
    ops = choose("reference", exact=False)
    step = make_step([Lane(1, CHUNK, slot=1)])
    close(ops.gated_delta(**inputs, pool=pools[0], step=step), wanted)
    position = base = 0
    for first in range(0, CHUNK, 4):
        lane = Lane(1, 4, position, base, slot=1)
        part = {name: x[first : first + 4] for name, x in inputs.items()}
        out = ops.gated_delta(**part, pool=pools[1], step=make_step([lane]))
        close(out, wanted[first : first + 4])
        position, base = position + 4, lane.end_base(16)
