"""Specs say how many bytes a layer takes, in what order its axes lie, and refuse what makes no sense."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.config import Limits, journal_capacity, ring_capacity
from holdfast.memory.kv_pool import KVPool
from holdfast.memory.spec import ConvSpec, KVSpec, StateSpec, TensorSpec
from holdfast.memory.state_pool import StatePool

from .models import CONFIGS, LIMITS, build_model

CPU = torch.device("cpu")
DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])
SIZES = st.integers(1, 6)
BACKENDS = ["reference", "reference_kv"]


@st.composite
def limits(draw: st.DrawFn) -> Limits:
    grid = draw(st.sampled_from([1, 4, 16]))
    return Limits(
        max_num_seqs=draw(SIZES),
        max_num_batched_tokens=8,
        max_model_len=draw(st.integers(1, 40)),
        vocab_size=10,
        page_size=16,
        num_pages=draw(st.integers(0, 9)),
        num_slots=draw(st.integers(0, 9)),
        fold_every=grid,
        max_window=draw(st.integers(1, grid)),
    )


@st.composite
def conv_specs(draw: st.DrawFn) -> ConvSpec:
    return ConvSpec(channels=draw(SIZES), width=draw(st.integers(2, 5)), dtype=draw(DTYPES))


@st.composite
def state_specs(draw: st.DrawFn) -> StateSpec:
    conv = draw(st.dictionaries(st.sampled_from(["q", "k", "v"]), conv_specs()))
    if draw(st.booleans()):
        return StateSpec(conv=conv)
    sizes = {"head": draw(SIZES), "value": draw(SIZES), "key": draw(SIZES)}
    order = tuple(draw(st.permutations(list(sizes))))
    return StateSpec(
        conv=conv,
        temporal=TensorSpec(sizes, draw(DTYPES), order=draw(st.sampled_from([(), order]))),
        entry={
            name: TensorSpec({"head": draw(SIZES), name: draw(SIZES)}, draw(DTYPES)) for name in ("k", "u")
        },
    )


@settings(derandomize=True, max_examples=80, deadline=None)
@given(st.data())
def test_declared_bytes_are_the_bytes_allocated(data: st.DataObject) -> None:
    """Slots and rows, each with one more for padding; a window's worth of pages likewise."""
    specs = data.draw(st.dictionaries(st.sampled_from(["a", "b", "c"]), state_specs()))
    sizes = data.draw(limits())
    pool = StatePool(specs, sizes, CPU)
    slot = sum(spec.slot_bytes() for spec in specs.values())
    row = sum(spec.row_bytes(sizes.journal_capacity, sizes.max_window) for spec in specs.values())
    assert pool.slot_bytes == (sizes.num_slots + 1) * slot
    assert pool.row_bytes == (sizes.max_num_seqs + 1) * row
    held = [x for layer in pool.layers.values() for x in layer.saved().values()]
    assert sum(x.untyped_storage().nbytes() for x in held) == pool.slot_bytes
    held = [x for layer in pool.layers.values() for x in layer.rings().values()]
    assert sum(x.untyped_storage().nbytes() for x in held) == pool.row_bytes


@settings(derandomize=True, max_examples=30, deadline=None)
@given(st.data())
def test_declared_page_bytes_are_the_bytes_allocated(data: st.DataObject) -> None:
    widths = st.none() | st.just(0) | SIZES
    kinds = st.builds(KVSpec, heads=SIZES, head_dim=SIZES, dtype=DTYPES, value_dim=widths)
    specs, sizes = data.draw(st.dictionaries(st.sampled_from(["a", "b"]), kinds)), data.draw(limits())
    pool = KVPool(specs, sizes, CPU)
    page = sum(spec.page_bytes(sizes.page_size) for spec in specs.values())
    assert pool.nbytes == (sizes.num_pages + 1) * page
    assert pool.table.shape == (sizes.max_num_seqs + 1, sizes.pages_per_row)
    assert pool.table.shape[1] * sizes.page_size >= sizes.max_model_len + sizes.max_window


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_model_s_layers_take_what_they_declare(name: str, backend: str) -> None:
    model = build_model(name, backend=backend)
    specs, pages = model.state_specs(), model.kv_specs()
    pool, kv = StatePool(specs, LIMITS, CPU), KVPool(pages, LIMITS, CPU)
    assert pool.slot_bytes == (LIMITS.num_slots + 1) * sum(spec.slot_bytes() for spec in specs.values())
    per_page = sum(spec.page_bytes(LIMITS.page_size) for spec in pages.values())
    assert kv.nbytes == (LIMITS.num_pages + 1) * per_page
    per_row = sum(spec.row_bytes(LIMITS.journal_capacity, LIMITS.max_window) for spec in specs.values())
    assert pool.row_bytes == (LIMITS.max_num_seqs + 1) * per_row
    declared = [m for m in model.modules() if hasattr(m, "state_spec") or hasattr(m, "kv_spec")]
    assert set(specs).isdisjoint(pages) and len(specs) + len(pages) == len(declared) > 0


def test_a_backend_chooses_the_axis_order_and_only_that() -> None:
    first, second = (build_model("qwen3_5", backend=b).state_specs()["blocks.0"] for b in BACKENDS)
    plain, swapped = first.temporal, second.temporal
    assert plain is not None and swapped is not None
    assert plain.sizes == swapped.sizes and plain.nbytes == swapped.nbytes
    assert plain.shape == (2, 6, 4) and swapped.shape == (2, 4, 6)
    assert first.entry == second.entry and first.conv == second.conv


def test_the_order_of_axes_is_the_shape_as_stored() -> None:
    sizes = {"head": 2, "value": 3, "key": 5}
    assert TensorSpec(sizes, torch.float32).shape == (2, 3, 5)
    assert TensorSpec(sizes, torch.float32, order=("key", "head", "value")).shape == (5, 2, 3)
    assert TensorSpec(sizes, torch.bfloat16, order=("key", "head", "value")).nbytes == 60
    assert TensorSpec({}, torch.float32).nbytes == 4


@pytest.mark.parametrize("order", [("head",), ("head", "key", "key"), ("head", "value", "key", "row")])
def test_an_order_must_name_every_axis_once(order: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="does not name the axes"):
        TensorSpec({"head": 2, "value": 3, "key": 5}, torch.float32, order=order)


def test_the_sharded_axis_must_exist() -> None:
    assert TensorSpec({"head": 2}, torch.float32, sharded="head").sharded == "head"
    with pytest.raises(ValueError, match=r"'row' is not one of \('head',\)"):
        TensorSpec({"head": 2}, torch.float32, sharded="row")


def test_a_layer_without_state_takes_nothing() -> None:
    assert StateSpec().slot_bytes() == StateSpec().row_bytes(17, 1) == 0


@pytest.mark.parametrize(("grid", "window", "places"), [(16, 1, 17), (16, 5, 25), (1, 1, 2), (8, 8, 23)])
def test_capacities_are_those_of_the_design(grid: int, window: int, places: int) -> None:
    """J - 1 + 2 windows of entries, width - 1 + 2 windows of inputs."""
    assert journal_capacity(grid, window) == places
    assert ring_capacity(4, window) == 3 + 2 * window


def test_state_is_asked_for_by_name() -> None:
    """Three convolutions and no temporal state, or one and both: nothing depends on a place in a list."""
    three = StateSpec(conv={name: ConvSpec(2, 3, torch.float32) for name in ("q", "k", "v")})
    pool = StatePool({"mixer": three}, LIMITS, CPU)
    layer = pool.layers["mixer"]
    assert layer.temporal is None
    assert set(layer.saved()) == set(layer.rings()) == {"conv.q", "conv.k", "conv.v"}
    assert layer.conv["k"].saved.data_ptr() != layer.conv["v"].saved.data_ptr()
