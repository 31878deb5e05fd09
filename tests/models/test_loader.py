from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from holdfast.distributed.group import Group, Shard
from holdfast.models import loader
from holdfast.models.loader import LoadReport, WeightsError, load_weights

SIZES = {"embed.weight": (16, 8), "proj.weight": (12, 8), "proj.bias": (12,), "decay": (4,), "scale": ()}


class TinyModel(nn.Module):
    """Every kind of destination: a tied head, a float32 parameter among others, a buffer of either kind."""

    def __init__(
        self, dtype: torch.dtype = torch.float32, *, tied: bool = True, shard: Shard | None = None
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8, dtype=dtype)
        self.proj = nn.Linear(8, shard.local_size if shard else 12, dtype=dtype)
        self.decay = nn.Parameter(torch.empty(4, dtype=torch.float32))
        self.register_buffer("scale", torch.empty((), dtype=dtype))
        self.register_buffer("table", torch.arange(3, device="cpu"), persistent=False)
        self.head = nn.Linear(8, 16, bias=False, dtype=dtype)
        if tied:
            self.head.weight = self.embed.weight
        for parameter in self.proj.parameters():
            vars(parameter)["shard"] = shard


def tensors(dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {f"model.{name}": torch.randn(size, generator=generator).to(dtype) for name, size in SIZES.items()}


def rename(name: str) -> str | None:
    return None if name.startswith("mtp.") else name.removeprefix("model.")


def save(directory: Path, stored: dict[str, Tensor]) -> Path:
    save_file(stored, directory / "model.safetensors")
    return directory


def save_sharded(directory: Path, stored: dict[str, Tensor]) -> Path:
    """One file per tensor."""
    weight_map = {name: f"model-{i:05}-of-{len(stored):05}.safetensors" for i, name in enumerate(stored, 1)}
    for name, file in weight_map.items():
        save_file({name: stored[name]}, directory / file)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return directory


def assert_loaded(model: nn.Module, stored: dict[str, Tensor]) -> None:
    state = model.state_dict()
    for name, value in stored.items():
        target = state[name.removeprefix("model.")]
        assert torch.equal(target, value.to(target.dtype)), name


@pytest.mark.parametrize("write", [save, save_sharded])
@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_fills_every_tensor(tmp_path: Path, write: Callable[..., Path], device: str) -> None:
    with torch.device(device):
        model = TinyModel()
    report = load_weights(model, write(tmp_path, tensors()), rename)
    assert_loaded(model, tensors())
    assert model.head.weight is model.embed.weight
    assert report == LoadReport(
        loaded=report.loaded, skipped=(), bytes_read=4 * sum(t.numel() for t in tensors().values())
    )
    assert sorted(report.loaded) == sorted(SIZES)


def test_materialised_parameters_are_filled_in_place(tmp_path: Path) -> None:
    model = TinyModel()
    before = {name: t.data_ptr() for name, t in model.state_dict().items()}
    load_weights(model, save(tmp_path, tensors()), rename)
    assert {name: t.data_ptr() for name, t in model.state_dict().items()} == before


def test_meta_parameters_stay_the_same_objects(tmp_path: Path) -> None:
    shard = Shard(0, (12,), Group())
    with torch.device("meta"):
        model = TinyModel(shard=shard)
    model.proj.weight.requires_grad_(False)
    before = dict(model.named_parameters())
    load_weights(model, save(tmp_path, tensors()), rename, device="cpu")
    for name, parameter in model.named_parameters():
        assert parameter is before[name] and isinstance(parameter, nn.Parameter)
        assert parameter.device.type == "cpu"
    assert vars(model.proj.weight)["shard"] is shard
    assert not model.proj.weight.requires_grad and model.proj.bias.requires_grad


@pytest.mark.parametrize("stored_dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_converts_to_each_parameters_own_dtype(
    tmp_path: Path, stored_dtype: torch.dtype, dtype: torch.dtype
) -> None:
    with torch.device("meta"):
        model = TinyModel(dtype)
    report = load_weights(model, save(tmp_path, tensors(stored_dtype)), rename)
    assert model.decay.dtype == torch.float32 and model.proj.weight.dtype == dtype
    assert_loaded(model, tensors(stored_dtype))
    assert report.bytes_read == stored_dtype.itemsize * sum(t.numel() for t in tensors().values())


def test_unused_tensors_are_skipped_whatever_they_are(tmp_path: Path) -> None:
    extra = {"mtp.norm.weight": torch.zeros(3), "mtp.steps": torch.arange(3)}
    report = load_weights(TinyModel(), save(tmp_path, tensors() | extra), rename)
    assert report.skipped == ("mtp.norm.weight", "mtp.steps")
    assert not set(report.loaded) & set(extra)


@pytest.mark.parametrize("present", [True, False])
def test_a_tied_head_may_be_stored_or_not(tmp_path: Path, present: bool) -> None:
    stored = tensors()
    if present:
        stored["lm_head.weight"] = stored["model.embed.weight"].clone()
    report = load_weights(
        TinyModel(), save(tmp_path, stored), lambda name: None if name == "lm_head.weight" else rename(name)
    )
    assert report.skipped == (("lm_head.weight",) if present else ())


def test_an_untied_head_must_be_stored(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"the model needs head\.weight, which no file in .* gives"):
        load_weights(TinyModel(tied=False), save(tmp_path, tensors()), rename)


# What can be wrong with a directory


def failure(directory: Path, model: nn.Module | None = None) -> str:
    with pytest.raises(WeightsError) as caught:
        load_weights(model or TinyModel(), directory, rename)
    return str(caught.value)


def test_no_files(tmp_path: Path) -> None:
    assert "has no safetensors files" in failure(tmp_path)
    assert "is not a directory" in failure(tmp_path / "absent")
    save_file(tensors(), tmp_path / "adapter.safetensors")
    assert "has adapter.safetensors, which no index lists" in failure(tmp_path)


def test_index_names_an_absent_file(tmp_path: Path) -> None:
    save_sharded(tmp_path, tensors())
    (tmp_path / "model-00002-of-00005.safetensors").unlink()
    message = failure(tmp_path)
    assert "model.proj.weight is in model-00002-of-00005.safetensors, and there is no such file" in message


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"weight_map": 3}'])
def test_an_index_that_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(content)
    assert "is not an index of weights" in failure(tmp_path)


@pytest.mark.parametrize("keep", [0, 5, 100, -1])
def test_a_truncated_file(tmp_path: Path, keep: int) -> None:
    file = save(tmp_path, tensors()) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    assert f"{file} cannot be read" in failure(tmp_path)


def test_a_corrupt_file(tmp_path: Path) -> None:
    file = save(tmp_path, tensors()) / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[8:40] = b"\xff" * 32
    file.write_bytes(content)
    assert f"{file} cannot be read" in failure(tmp_path)


def test_a_tensor_is_absent(tmp_path: Path) -> None:
    stored = tensors()
    del stored["model.decay"], stored["model.proj.bias"]
    message = failure(save_sharded(tmp_path, stored))
    assert message == f"the model needs decay, proj.bias, which no file in {tmp_path} gives"


def test_a_tensor_nobody_uses(tmp_path: Path) -> None:
    file = save(tmp_path, tensors() | {"model.extra": torch.zeros(2)}) / "model.safetensors"
    assert failure(tmp_path) == f"the model has no place for model.extra in {file}"


def test_wrong_shape(tmp_path: Path) -> None:
    file = save(tmp_path, tensors() | {"model.proj.weight": torch.zeros(8, 12)}) / "model.safetensors"
    assert failure(tmp_path) == f"model.proj.weight in {file} has shape (8, 12); proj.weight needs (12, 8)"


def test_the_same_destination_twice(tmp_path: Path) -> None:
    file = save(tmp_path, tensors() | {"decay": torch.zeros(4)}) / "model.safetensors"
    assert failure(tmp_path) == f"decay is given twice: by decay in {file} and by model.decay in {file}"


@pytest.mark.parametrize(
    ("dtype", "name"), [(torch.int64, "I64"), (torch.bool, "BOOL"), (torch.float8_e4m3fn, "F8_E4M3")]
)
def test_a_dtype_that_cannot_be_converted(tmp_path: Path, dtype: torch.dtype, name: str) -> None:
    file = save(tmp_path, tensors() | {"model.decay": torch.zeros(4).to(dtype)}) / "model.safetensors"
    assert (
        failure(tmp_path) == f"model.decay in {file} has dtype {name}; it must be one of F64, F32, F16, BF16"
    )


def test_a_failure_leaves_the_model_untouched(tmp_path: Path) -> None:
    model = TinyModel()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    failure(save(tmp_path, tensors() | {"model.scale": torch.zeros(2)}), model)
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


def test_a_computed_buffer_must_not_be_left_on_meta(tmp_path: Path) -> None:
    model = TinyModel()
    model.register_buffer("rotary", torch.empty(3, device="meta"), persistent=False)
    assert "rotary is on the meta device" in failure(save(tmp_path, tensors()), model)


# Ranks


PARTS = [(12,), (6, 2, 4)]


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_two_ranks_hold_the_full_tensor_between_them(
    tmp_path: Path, parts: tuple[int, ...], device: str
) -> None:
    save(tmp_path, tensors())
    shards = [Shard(0, parts, Group(rank, 2)) for rank in range(2)]
    halves = []
    for shard in shards:
        with torch.device(device):
            model = TinyModel(shard=shard)
        load_weights(model, tmp_path, rename)
        assert model.proj.weight.shape == (6, 8)
        halves.append(model.proj)
    for leaf in ("weight", "bias"):
        full = tensors()[f"model.proj.{leaf}"]
        sections = zip(*(getattr(half, leaf).split([p // 2 for p in parts]) for half in halves), strict=True)
        assert torch.equal(torch.cat([piece for section in sections for piece in section]), full)
        for shard, half in zip(shards, halves, strict=True):
            assert torch.equal(shard.take(full), getattr(half, leaf))


def test_a_rank_needs_the_full_shape_in_the_file(tmp_path: Path) -> None:
    save(tmp_path, tensors() | {"model.proj.weight": torch.zeros(6, 8)})
    message = failure(tmp_path, TinyModel(shard=Shard(0, (12,), Group(1, 2))))
    assert message.endswith("has shape (6, 8); proj.weight needs (12, 8)")


def test_a_shard_must_agree_with_its_parameter(tmp_path: Path) -> None:
    model = TinyModel(shard=Shard(0, (12,), Group(0, 2)))
    vars(model.proj.weight)["shard"] = Shard(0, (8,), Group(0, 2))
    message = failure(save(tmp_path, tensors()), model)
    assert message == "proj.weight of shape (6, 8) is declared to hold 4 along axis 0"


# Streaming


@dataclass
class Reads:
    """Every piece that was read from a file: its shape, and whether someone still holds it."""

    shapes: list[tuple[int, ...]] = field(default_factory=list)
    last: Callable[[], Tensor | None] = lambda: None

    def note(self, piece: Tensor) -> Tensor:
        assert self.last() is None, "a piece is read while another is held"
        self.shapes.append(tuple(piece.shape))
        self.last = weakref.ref(piece)
        return piece


class SpySlice:
    def __init__(self, spied: Any, reads: Reads) -> None:
        self.spied, self.reads = spied, reads

    def __getitem__(self, key: Any) -> Tensor:
        return self.reads.note(self.spied[key])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.spied, name)


class SpyFile:
    """An open file that has `keys` and `get_slice`, and nothing that reads a tensor whole."""

    def __init__(self, spied: Any, reads: Reads) -> None:
        self.keys, self.spied, self.reads = spied.keys, spied, reads

    def get_slice(self, name: str) -> SpySlice:
        return SpySlice(self.spied.get_slice(name), self.reads)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    seen = Reads()

    @contextmanager
    def spy_open(*args: Any, **options: Any) -> Iterator[SpyFile]:
        with safe_open(*args, **options) as file:
            yield SpyFile(file, seen)

    monkeypatch.setattr(loader, "safe_open", spy_open)
    return seen


@pytest.mark.parametrize("write", [save, save_sharded])
def test_one_tensor_is_read_at_a_time(tmp_path: Path, write: Callable[..., Path], reads: Reads) -> None:
    extra = {"mtp.weight": torch.zeros(7, 7)}
    load_weights(TinyModel(), write(tmp_path, tensors() | extra), rename)
    assert sorted(reads.shapes) == sorted(SIZES.values()), "each once, and the unused one never"


def test_a_rank_reads_only_its_part(tmp_path: Path, reads: Reads) -> None:
    model = TinyModel(shard=Shard(0, (6, 2, 4), Group(1, 2)))
    report = load_weights(model, save(tmp_path, tensors()), rename)
    assert [shape for shape in reads.shapes if len(shape) == 2 and shape[0] < 16] == [(3, 8), (1, 8), (2, 8)]
    assert report.bytes_read == 4 * (16 * 8 + 6 * 8 + 6 + 4 + 1)


def test_nothing_is_read_before_all_is_checked(tmp_path: Path, reads: Reads) -> None:
    failure(save_sharded(tmp_path, tensors() | {"model.scale": torch.zeros(2)}))
    assert reads.shapes == []


# The bar


def test_progress_is_drawn_when_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load_weights(TinyModel(), save(tmp_path, tensors()), rename, progress=True)
    drawn = capsys.readouterr()
    assert "100%" in drawn.err and drawn.err.endswith("\n") and drawn.out == ""


def test_progress_is_silent_without_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load_weights(TinyModel(), save(tmp_path, tensors()), rename)
    assert capsys.readouterr().err == ""
