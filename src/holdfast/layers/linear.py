"""Linear layers and embeddings, with their sharding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..distributed.group import Shard
from .batch import Build


def parameter(shape: tuple[int, ...], dtype: torch.dtype, shard: Shard | None = None) -> nn.Parameter:
    made = nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)
    made.shard = shard  # type: ignore[attr-defined]  # the loader asks for it
    return made


@dataclass(frozen=True)
class Part:
    """A tensor of the files that fills a piece of a parameter.

    at       the piece: parameter[at]
    shard    how ranks divide the tensor
    reorder  makes of the tensor as it is stored the one that is meant, if its rows stand in another order there
    """

    at: tuple[int | slice, ...]
    shard: Shard
    reorder: Callable[[Tensor], Tensor] | None = None


def merged_parameter(
    shape: tuple[int, ...], dtype: torch.dtype, whole: Shard, ways: Callable[[], list[Mapping[str, Part]]]
) -> nn.Parameter:
    """A parameter that the files may hold as several tensors: the parts of one of the `ways`. Or as one.

    ways: asked for when weights are loaded, for there can be thousands of parts
    """
    made = parameter(shape, dtype, whole)
    made.ways = ways  # type: ignore[attr-defined]  # the loader asks for it
    return made


def in_order(build: Build, parts: Mapping[str, tuple[int, ...]]) -> dict[str, Part]:
    """Tensors one below the other, each with the sizes of its sections."""
    way: dict[str, Part] = {}
    first = 0
    for name, sizes in parts.items():
        shard = Shard(axis=0, parts=sizes, group=build.group)
        way[name] = Part((slice(first, first + shard.local_size),), shard)
        first += shard.local_size
    return way


class Linear(nn.Module):
    """y = x W^T + b on this rank's part.

    split="out": the output's sections `parts` are divided among ranks, and the result stays divided.
    split="in":  the input is divided, and the ranks' results are added up.
    """

    def __init__(
        self,
        build: Build,
        inputs: int,
        outputs: int,
        *,
        bias: bool = False,
        split: str | None = None,
        parts: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__()
        self.ops, self.group, self.split = build.ops, build.group, split
        shard = None
        if split == "out":
            shard = Shard(axis=0, parts=parts or (outputs,), group=build.group)
            outputs = shard.local_size
        elif split == "in":
            shard = Shard(axis=1, parts=parts or (inputs,), group=build.group)
            inputs = shard.local_size
        self.weight = parameter((outputs, inputs), build.dtype, shard)
        self.bias = parameter((outputs,), build.dtype, shard if split == "out" else None) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        if self.split != "in" or self.group.size == 1:
            return self.ops.linear(x, self.weight, self.bias)
        summed = self.group.all_reduce(self.ops.linear(x, self.weight, None))
        return summed if self.bias is None else summed + self.bias  # once, not once per rank


class MergedLinear(nn.Module):
    """Projections of one input as one product: their weights lie in one parameter, one below the other.

    `parts` gives for each projection the sizes of its output's sections, each of which ranks divide by itself:

        self.qkv_proj = MergedLinear(build, hidden, {"q_proj": (q,), "k_proj": (kv,), "v_proj": (kv,)})
        q, k, v = self.qkv_proj(x)

    In the files every part is a tensor of its own, and it goes by the name that a `Linear` called so would have in
    this layer's place: `q_proj.weight`, not `qkv_proj.weight`. Weight maps and error messages know nothing of the
    merging; the loader fills the parameter part by part. Files that have `qkv_proj.weight` are read as well, and
    those that hold the parts in other ways, if the layer knows them: `other_ways`.
    """

    def __init__(
        self,
        build: Build,
        inputs: int,
        parts: Mapping[str, tuple[int, ...]],
        *,
        bias: bool = False,
        other_ways: Sequence[Mapping[str, Part]] = (),
    ) -> None:
        super().__init__()
        self.ops = build.ops
        way = in_order(build, parts)
        self.sizes = [part.shard.local_size for part in way.values()]
        whole = Shard(
            axis=0, parts=tuple(size for sizes in parts.values() for size in sizes), group=build.group
        )
        ways = [way, *other_ways]
        self.weight = merged_parameter((sum(self.sizes), inputs), build.dtype, whole, lambda: ways)
        self.bias = merged_parameter((sum(self.sizes),), build.dtype, whole, lambda: ways) if bias else None

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.ops.linear(x, self.weight, self.bias).split_with_sizes(self.sizes, -1)


class Stream(NamedTuple):
    """The residual stream, and what is yet to be added to it: the next norm does that in passing.

    tap  [tokens, hidden]: where the sum is also wanted
    """

    x: Tensor
    added: Tensor | None = None
    tap: Tensor | None = None


def summed(stream: Stream) -> Tensor:
    x, added, tap = stream
    if added is not None:
        return torch.add(x, added, out=tap)
    return x if tap is None else tap.copy_(x)


class Embedding(nn.Module):
    def __init__(self, build: Build, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.ops = build.ops
        self.weight = parameter((vocab_size, hidden_size), build.dtype)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.ops.embedding(tokens, self.weight)


class RMSNorm(nn.Module):
    def __init__(self, build: Build, size: int, eps: float, *, zero_centred: bool = False) -> None:
        super().__init__()
        self.ops, self.eps, self.zero_centred = build.ops, eps, zero_centred
        self.weight = parameter((size,), build.dtype)

    def forward(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        return self.ops.rms_norm(x, self.weight, self.eps, zero_centred=self.zero_centred, out=out)

    def of_stream(self, stream: Stream) -> tuple[Tensor, Tensor]:
        """The stream, summed, and its norm."""
        x, added, tap = stream
        if added is None:
            x = summed(stream)
            return x, self(x)
        return self.ops.add_rms_norm(x, added, self.weight, self.eps, zero_centred=self.zero_centred, out=tap)


def norms_beside(*normed: tuple[RMSNorm, Tensor]) -> Tensor:
    """Norms of as many vectors of each token, one beside the other."""
    sizes = [x.shape[1] for _, x in normed]
    joined = torch.empty(
        len(normed[0][1]), sum(sizes), dtype=normed[0][0].weight.dtype, device=normed[0][1].device
    )
    for (norm, x), part in zip(normed, joined.split(sizes, 1), strict=True):
        norm(x, out=part)
    return joined
