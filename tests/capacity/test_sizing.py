"""Every figure of the plan against what is really allocated: exactly, not about."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from holdfast.blueprint import Blueprint
from holdfast.config import EngineConfig
from holdfast.engine import Engine, build_engine

from .shapes import EVERY, QWEN3_5, TINY, ZOO, published, write

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bfloat16": {"dtype": "bfloat16"},
    "bfloat16-state": {"state_dtype": "bfloat16", "num_slots": 9},
    "small-pages": {"page_size": 16, "num_pages": 40},
    "large-pages": {"page_size": 128, "fold_every": 32},
    "drafts": {
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 5},
        "max_num_batched_tokens": 48,
    },
    "short": {"max_model_len": 70, "max_num_seqs": 1, "fold_every": 8},
    "memory": {"memory": "4MiB", "max_num_batched_tokens": 64},
    "stamps": {"sanitizer": "stamps", "memory": "5MiB", "max_num_batched_tokens": 64},
    "full": {"sanitizer": "full", "speculative_config": {"method": "ngram", "num_speculative_tokens": 2}},
}
DRAFTERS = {"mtp": (), "standalone": ("model",)}
BYTE_STATE = {"state_dtype": "int8", "num_slots": 9}
SMALL = {"max_num_seqs": 3, "load_format": "dummy"}


def drafting(method: str, directory: Path) -> dict[str, Any]:
    """The model drafts for itself."""
    further = {option: str(directory) for option in DRAFTERS[method]}
    config = {"method": method, "num_speculative_tokens": 3, **further}
    return {"speculative_config": config, "sanitizer": "full"}


@pytest.fixture(autouse=True, scope="module")
def what_was_there_is_not_looked_through() -> Iterator[None]:
    """All that other tests have imported would be, several times a test."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def live_tensors() -> list[Tensor]:
    gc.collect()
    return [item for item in gc.get_objects() if issubclass(type(item), Tensor)]


def storage_bytes(tensors: list[Tensor]) -> int:
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


def build(directory: Path, **options: Any) -> Engine:
    return build_engine(directory, EngineConfig(**{**SMALL, **options}))


@pytest.mark.parametrize(
    ("model", "option"),
    [
        *product(TINY, OPTIONS),
        *((model, "drafts") for model in ZOO),
        *product(["qwen3_5"], [*DRAFTERS, "byte-state"]),
    ],
)
def test_every_part_is_what_is_allocated(tmp_path: Path, model: str, option: str) -> None:
    directory = write(tmp_path / "model", EVERY[model])
    options = OPTIONS | {"byte-state": BYTE_STATE}
    before = live_tensors()  # held, so that no new tensor can take the place of one of them
    engine = build(directory, **options[option] if option in options else drafting(option, directory))
    known = {id(tensor) for tensor in before}
    allocated = storage_bytes([tensor for tensor in live_tensors() if id(tensor) not in known])

    parts, runner = engine.capacity.parts, engine.runner
    assert parts.weights == storage_bytes(list(runner.ensemble.parameters()))
    assert parts.kv == runner.kv.nbytes
    assert parts.checkpoints == runner.state.slot_bytes
    assert parts.journals == runner.state.row_bytes
    assert parts.total - parts.activations == allocated
    assert parts.total == sum(vars(parts).values())


@pytest.mark.gpu
@pytest.mark.parametrize("model", EVERY)
def test_a_gpu_is_asked_for_as_much(tmp_path: Path, model: str) -> None:
    """What buffers have on the host is in the plan, and not on the GPU."""
    directory = write(tmp_path / "model", EVERY[model])
    asked = dict(device="cuda", dtype="bfloat16", memory="512MiB", eager=True)
    build(directory, **asked)  # from now on a library keeps its workspaces
    before = requested()
    engine = build(directory, **asked)
    holders = (engine.runner.inputs, engine.runner.kv, engine.runner.state)
    buffers = [held for holder in holders for held in vars(holder).values() if hasattr(held, "_host")]
    on_host = sum(copy.nbytes for buffer in buffers for copy in buffer._host)
    parts = engine.capacity.parts
    assert requested() - before == parts.total - parts.activations - on_host


@pytest.mark.gpu
def test_recorded_steps_keep_no_more_than_is_planned_for_them(tmp_path: Path) -> None:
    """And no logits: a vocabulary that is 64 times larger changes nothing."""
    options = dict(device="cuda", dtype="bfloat16", num_pages=80, max_num_seqs=64, max_model_len=64)

    def kept(vocab_size: int) -> int:
        directory = write(tmp_path / "model", TINY["lfm2"] | {"vocab_size": vocab_size})
        before = requested()
        eager = build(directory, eager=True, **options)
        between = requested()
        recorded = build(directory, **options)
        more = (requested() - between) - (between - before)
        assert len(recorded.runner.graphs) and not len(eager.runner.graphs)
        assert 0 < more <= recorded.capacity.parts.graphs and not eager.capacity.parts.graphs
        return more

    kept(256)  # from now on a library keeps its workspaces
    assert kept(256) == kept(1 << 14)


def requested() -> int:
    gc.collect()
    torch.cuda.init()  # there are no statistics before
    return int(torch.cuda.memory_stats()["requested_bytes.all.current"])


@pytest.mark.parametrize("model", TINY)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_units_are_what_one_more_adds(tmp_path: Path, model: str, dtype: str) -> None:
    directory = write(tmp_path / "model", TINY[model])
    sizes = {
        "max_num_seqs": 2,
        "num_pages": 40,
        "num_slots": 4,
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 2},
        "max_model_len": 200,
    }

    def allocated(**changes: int) -> tuple[int, int, int]:
        runner = build(directory, dtype=dtype, **(sizes | changes)).runner
        return runner.kv.nbytes, runner.state.slot_bytes, runner.state.row_bytes

    units = build(directory, dtype=dtype, **sizes).capacity.units
    kv, slots, rows = allocated()
    assert allocated(num_pages=41)[0] - kv == units.kv_page == 64 * units.kv_token
    assert allocated(num_slots=5)[1] - slots == units.checkpoint
    assert allocated(max_num_seqs=3)[2] - rows == units.row
    assert (
        allocated(speculative_config=dict(method="ngram", num_speculative_tokens=3))[2] - rows
        == 3 * units.draft_token
    )  # two rows and padding


def test_the_plan_of_a_real_model_allocates_nothing_to_speak_of(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    directory = write(tmp_path / "model", published("qwen3.5-4b"))
    Blueprint(directory, EngineConfig(memory="80GiB"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    Blueprint(directory, EngineConfig(memory="80GiB", dtype="bfloat16"))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("lfm2-1.2b", lambda t, c: t.Lfm2ForCausalLM(t.Lfm2Config(**c))),
        ("qwen3.5-4b", lambda t, c: t.Qwen3_5ForCausalLM(t.Qwen3_5TextConfig(**c["text_config"]))),
    ],
)
def test_weights_of_published_shapes(tmp_path: Path, name: str, make: Any) -> None:
    transformers = pytest.importorskip("transformers")
    with torch.device("meta"):
        model = make(transformers, published(name))
    in_float32 = ("A_log", "dt_bias")  # here, whatever the others are in
    expected = sum(p.numel() * (4 if n.endswith(in_float32) else 2) for n, p in model.named_parameters())
    directory = write(tmp_path / "model", published(name))
    capacity = Blueprint(directory, EngineConfig(memory="80GiB", dtype="bfloat16")).capacity
    assert capacity.parts.weights == expected


def test_figures_that_can_be_worked_out_by_hand(tmp_path: Path) -> None:
    """LFM2-1.2B: ten convolutions of 2,048 channels and width 3, six layers with 8 heads of 64; bfloat16."""
    directory = write(tmp_path / "model", published("lfm2-1.2b"))
    units = Blueprint(directory, EngineConfig(memory="80GiB", dtype="bfloat16")).capacity.units
    assert units.kv_token == 6 * 2 * 8 * 64 * 2
    assert units.checkpoint == 10 * 2 * 2048 * 2
    assert units.row == 10 * (2 + 2) * 2048 * 2  # width - 1, and two windows of one token
    assert units.draft_token == 10 * 2 * 2048 * 2


def test_the_recurrent_state_of_an_80b_hybrid(tmp_path: Path) -> None:
    """Of 48 layers 36 are gated delta nets with 32 states of 128 x 128 in float32 beside bfloat16 inputs."""
    shape = QWEN3_5 | {
        "hidden_size": 2048,
        "num_hidden_layers": 48,
        "layer_types": None,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
    }
    directory = write(tmp_path / "model", shape)
    for method in ("ngram", "mtp"):
        config = EngineConfig(
            memory="80GiB",
            dtype="bfloat16",
            speculative_config=dict(method=method, num_speculative_tokens=4),
        )
        capacity = Blueprint(directory, config).capacity
        units = capacity.units
        assert units.checkpoint / 2**20 == pytest.approx(73.7, abs=0.05)
        assert units.kv_token == (12 + (method == "mtp")) * 2 * 2 * 256 * 2
        assert 24 < units.row / 2**20 < 26, "snapshots of four drafts alone would take 288"
        assert 9 < 4 * units.draft_token / 2**20 < 11
        assert "; 4 drafts take 10" in capacity.render()
