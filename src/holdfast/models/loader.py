"""Weights from a directory as it is on the hub: safetensors, one file or several, every tensor accounted for.

All headers are read and checked before any data is, so a directory that does not fit the model fails at once.
Then one tensor at a time is read, only the part this rank holds, straight into its parameter.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from ..distributed.group import Shard
from ..layers.linear import Part
from ..progress import Progress

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
FLOATS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
INTEGERS = {"I64": 8, "I32": 4}
BYTES = FLOATS | INTEGERS
"""Sizes of the dtypes that can be converted to a parameter's without knowing more, if that is of the same kind."""

_swap_tensors: Callable[[Tensor, Tensor], None] = torch.utils.swap_tensors


class WeightsError(ValueError):
    """The files do not fit the model; the message names the file, the tensor and what was expected."""


@dataclass(frozen=True)
class LoadReport:
    loaded: tuple[str, ...]
    """Parameters and buffers that were filled, by the model's names."""
    skipped: tuple[str, ...]
    """Tensors that the architecture declares it does not use, by their names in the files."""
    bytes_read: int


@dataclass(frozen=True)
class _Stored:
    """A tensor in a file, as its header tells it."""

    file: Path
    name: str
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.name} in {self.file}"

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * BYTES[self.dtype]


@dataclass(frozen=True)
class _Destination:
    """What one tensor of the files fills: a parameter, or a part of a merged one."""

    name: str
    parameter: Tensor
    shard: Shard | None
    at: tuple[int | slice, ...] = ()
    reorder: Callable[[Tensor], Tensor] | None = None

    @property
    def full_shape(self) -> tuple[int, ...]:
        shape = list(self.target.shape)
        if self.shard is not None:
            shape[self.shard.axis] = self.shard.full_size
        return tuple(shape)

    @property
    def target(self) -> Tensor:
        return self.parameter[self.at]


_Ways = list[list[_Destination]]
"""Of one parameter: the sets of tensors that can fill it."""


@dataclass(frozen=True)
class _Assignment:
    source: _Stored
    to: _Destination


def load_weights(
    model: nn.Module,
    directory: Path,
    rename: Callable[[str], str | None],
    *,
    device: torch.device | str = "cpu",
    progress: bool | None = None,
) -> LoadReport:
    """Fill the model's parameters and persistent buffers from the files in `directory`.

    `rename` gives the model's name for a name in the files, or None for a tensor that the architecture does not
    use. Parameters on the meta device get memory on `device`; others are filled where they are. Each keeps its
    dtype, and takes its own part only if it has an attribute `shard`; one with an attribute `ways` may be filled by
    several tensors, as `layers.linear.MergedLinear` tells. `progress` is what `Progress` takes as `show`.
    """
    stored = list(_scan(_weight_files(directory)))
    assignments, skipped = _assign(stored, _destinations(model), rename, directory)
    total, bytes_read = sum(a.source.nbytes for a in assignments), 0
    bar = Progress(
        "Loading weights", total, lambda: f"{bar.done / 1e9:.2f}/{total / 1e9:.2f} GB", show=progress
    )
    with bar, torch.no_grad():
        for file, group in _by_file(assignments):
            with _open(file) as tensors:
                for item in group:
                    bytes_read += _fill(item, tensors.get_slice(item.source.name), device)
                    bar.advance(item.source.nbytes)
    _check_no_meta(model)
    return LoadReport(tuple(a.to.name for a in assignments), tuple(skipped), bytes_read)


def _weight_files(directory: Path) -> list[Path]:
    if (directory / SINGLE).is_file():
        return [directory / SINGLE]
    if (directory / INDEX).is_file():
        return _indexed_files(directory / INDEX)
    if not directory.is_dir():
        raise WeightsError(f"{directory} is not a directory")
    others = sorted(p.name for p in directory.glob("*.safetensors"))
    found = f"; it has {_some(others)}, which no index lists" if others else "; it has no safetensors files"
    raise WeightsError(f"{directory} needs {SINGLE}, or {INDEX} and the files it lists{found}")


def _indexed_files(index: Path) -> list[Path]:
    try:
        weight_map = json.loads(index.read_text())["weight_map"]
        files = {str(file): str(name) for name, file in weight_map.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(
            f"{index} is not an index of weights: no 'weight_map' of names to files"
        ) from error
    for file, name in files.items():
        if not (index.parent / file).is_file():
            raise WeightsError(f"{index} says that {name} is in {file}, and there is no such file")
    return [index.parent / file for file in sorted(files)]


@contextmanager
def _open(file: Path) -> Iterator[Any]:
    try:
        with safe_open(file, framework="pt") as tensors:
            yield tensors
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{file} cannot be read: {error}; it may be truncated, fetch it again") from error


def _scan(files: Iterable[Path]) -> Iterator[_Stored]:
    for file in files:
        with _open(file) as tensors:
            for name in tensors.keys():  # noqa: SIM118  a safetensors file is not iterable
                header = tensors.get_slice(name)
                yield _Stored(file, name, tuple(header.get_shape()), header.get_dtype())


def _destinations(model: nn.Module) -> list[_Ways]:
    """Of every parameter and persistent buffer; a tied one goes by its first name and its others are left out."""
    unique: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        unique.setdefault(id(tensor), (name, tensor))
    return [_ways(name, tensor) for name, tensor in unique.values()]


def _ways(name: str, tensor: Tensor) -> _Ways:
    """By its parts, each under the name of a module in the place of the one that merges them; or as one tensor."""
    ways: Callable[[], list[Mapping[str, Part]]] = getattr(tensor, "ways", list)
    *path, own = name.split(".")
    by_parts = [
        [
            _Destination(".".join((*path[:-1], key, own)), tensor, part.shard, part.at, part.reorder)
            for key, part in way.items()
        ]
        for way in ways()
    ]
    return [*by_parts, [_Destination(name, tensor, getattr(tensor, "shard", None))]]


def _assign(
    stored: list[_Stored],
    parameters: list[_Ways],
    rename: Callable[[str], str | None],
    directory: Path,
) -> tuple[list[_Assignment], list[str]]:
    """Which tensor fills which parameter. Nothing may be left over on either side."""
    destinations = {to.name: to for ways in parameters for way in ways for to in way}
    taken: dict[str, _Assignment] = {}
    skipped: list[str] = []
    unknown: list[_Stored] = []
    for source in stored:
        name = rename(source.name)
        if name is None:
            skipped.append(source.name)
        elif name not in destinations:
            unknown.append(source)
        elif name in taken:
            raise WeightsError(f"{name} is given twice: by {taken[name].source} and by {source}")
        else:
            taken[name] = _Assignment(source, destinations[name])
            _check_fits(source, destinations[name])
    if unknown:
        raise WeightsError(f"the model has no place for {_some(map(str, unknown))}")
    if absent := [name for ways in parameters for name in _absent(ways, taken)]:
        raise WeightsError(f"the model needs {_some(absent)}, which no file in {directory} gives")
    return list(taken.values()), skipped


def _absent(ways: _Ways, taken: Mapping[str, _Assignment]) -> list[str]:
    """What is still missing of the way that the files have begun; of the first, if they have none of any."""
    begun = [way for way in ways if any(to.name in taken for to in way)]
    if len(begun) > 1:
        one, other = (next(to.name for to in way if to.name in taken) for way in begun[:2])
        raise WeightsError(f"{one} is given twice: by {taken[one].source} and by {taken[other].source}")
    return [to.name for to in (begun or ways)[0] if to.name not in taken]


def _check_fits(source: _Stored, to: _Destination) -> None:
    allowed = FLOATS if to.parameter.is_floating_point() else INTEGERS
    if source.dtype not in allowed:
        raise WeightsError(f"{source} has dtype {source.dtype}; it must be one of {', '.join(allowed)}")
    shape, shard = tuple(to.target.shape), to.shard
    if shard is not None and shape[shard.axis] != shard.local_size:
        raise WeightsError(
            f"{to.name} of shape {shape} is declared to hold {shard.local_size} along axis {shard.axis}"
        )
    if source.shape != to.full_shape:
        raise WeightsError(f"{source} has shape {source.shape}; {to.name} needs {to.full_shape}")


def _by_file(assignments: list[_Assignment]) -> Iterator[tuple[Path, list[_Assignment]]]:
    groups: dict[Path, list[_Assignment]] = {}
    for item in assignments:
        groups.setdefault(item.source.file, []).append(item)
    yield from groups.items()


def _fill(item: _Assignment, source: Any, device: torch.device | str) -> int:
    """Copy this rank's part into its parameter, section by section. Returns the bytes read."""
    if item.to.parameter.is_meta:
        materialise(item.to.parameter, device)
    target, shard = item.to.target, item.to.shard
    if item.to.reorder is not None:
        source = item.to.reorder(source[...])
    if shard is None or shard.group.size == 1:
        target.copy_(source[...])
    else:
        for s in shard.sections():
            target[shard.along_axis(s.local, s.length)].copy_(source[shard.along_axis(s.full, s.length)])
    return target.numel() * BYTES[item.source.dtype]


def materialise(target: Tensor, device: torch.device | str) -> None:
    """Give a meta tensor memory. It stays the same object, so tied names and attributes such as `shard` hold."""
    # of a meta tensor, empty_like would import a library of symbols, in more than a second
    real = torch.empty_strided(target.shape, target.stride(), dtype=target.dtype, device=device)
    if isinstance(target, nn.Parameter):
        real = nn.Parameter(real, requires_grad=target.requires_grad)
    real.__dict__.update(target.__dict__)
    _swap_tensors(target, real)


def _check_no_meta(model: nn.Module) -> None:
    """Buffers that no file holds must be computed by the model, on a real device."""
    if left := [name for name, tensor in model.named_buffers() if tensor.is_meta]:
        raise WeightsError(
            f"{_some(left)} is on the meta device, and is no weight: the model must compute it"
        )


def _some(names: Iterable[str], limit: int = 5) -> str:
    names = list(names)
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
