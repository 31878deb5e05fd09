"""One parameter, several tensors: whichever way the files hold it, the same bytes on every rank."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from holdfast.distributed.group import Group
from holdfast.layers.batch import Build
from holdfast.layers.delta_net import DeltaNet, DeltaNetShape
from holdfast.layers.linear import MergedLinear
from holdfast.layers.moe import Experts, MoEShape
from holdfast.models.loader import WeightsError, load_weights
from holdfast.ops.backend import choose
from holdfast.ops.moe.reference import Routing

HIDDEN, COUNT, INNER = 6, 3, 4
RANKS = [Group(0, 1), Group(0, 2), Group(1, 2)]
Files = dict[str, Tensor]


def build(group: Group) -> Build:
    return Build(choose("reference", exact=False), torch.float32, torch.float32, 1, group)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Projections(nn.Module):
    def __init__(self, group: Group) -> None:
        super().__init__()
        self.qkv_proj = MergedLinear(
            build(group), HIDDEN, {"q_proj": (8,), "k_proj": (4,), "v_proj": (2, 2)}, bias=True
        )


PROJECTIONS: Files = {
    f"{name}_proj.{leaf}": drawn(*shape, seed=seed)
    for seed, (name, size) in enumerate({"q": 8, "k": 4, "v": 4}.items())
    for leaf, shape in {"weight": (size, HIDDEN), "bias": (size,)}.items()
}
JOINED: Files = {
    f"qkv_proj.{leaf}": torch.cat([PROJECTIONS[f"{name}_proj.{leaf}"] for name in "qkv"])
    for leaf in ("weight", "bias")
}


def experts(group: Group) -> Experts:
    return Experts(build(group), HIDDEN, MoEShape(HIDDEN, INNER, Routing(COUNT, 2)))


APART: Files = {
    f"{expert}.{name}.weight": drawn(*shape, seed=10 * expert + seed)
    for expert in range(COUNT)
    for seed, (name, shape) in enumerate(
        {"gate_proj": (INNER, HIDDEN), "up_proj": (INNER, HIDDEN), "down_proj": (HIDDEN, INNER)}.items()
    )
}
STACKED: Files = {
    "up_proj.weight": torch.stack(
        [torch.cat((APART[f"{e}.gate_proj.weight"], APART[f"{e}.up_proj.weight"])) for e in range(COUNT)]
    ),
    "down_proj.weight": torch.stack([APART[f"{e}.down_proj.weight"] for e in range(COUNT)]),
}

KEY_HEADS, RATIO, KEY, VALUE = 2, 3, 4, 5


class Mixer(nn.Module):
    """A delta net's projections without the rest of it."""

    def __init__(self, group: Group) -> None:
        super().__init__()
        shape = DeltaNetShape(HIDDEN, KEY_HEADS, KEY_HEADS * RATIO, KEY, VALUE, conv_width=4, eps=1e-6)
        self.in_proj = DeltaNet(build(group), "mixer", shape).in_proj


PER_HEAD = {"q": KEY, "k": KEY, "v": RATIO * VALUE, "z": RATIO * VALUE, "b": RATIO, "a": RATIO}
BY_HEAD = {name: drawn(KEY_HEADS, size, HIDDEN, seed=size) for name, size in PER_HEAD.items()}
BY_KIND: Files = {
    f"in_proj_{names}.weight": torch.cat([BY_HEAD[name].flatten(0, 1) for name in names])
    for names in ("qkv", "z", "b", "a")
}
INTERLEAVED: Files = {
    f"in_proj_{names}.weight": torch.cat([BY_HEAD[name] for name in names], 1).flatten(0, 1)
    for names in ("qkvz", "ba")
}

CASES: dict[str, tuple[Callable[[Group], nn.Module], list[Files]]] = {
    "projections": (Projections, [PROJECTIONS, JOINED]),
    "experts": (experts, [APART, STACKED]),
    "delta net": (Mixer, [BY_KIND, INTERLEAVED]),
}


def load(directory: Path, model: nn.Module, files: Files) -> nn.Module:
    directory.mkdir(exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in files.items()}, directory / "model.safetensors")
    load_weights(model, directory, lambda name: name)
    return model


@pytest.mark.parametrize("group", RANKS, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_every_way_gives_the_same(tmp_path: Path, case: str, group: Group) -> None:
    make, ways = CASES[case]
    first, *others = (load(tmp_path / str(i), make(group), files) for i, files in enumerate(ways))
    for other in others:
        for name, parameter in first.named_parameters():
            assert torch.equal(parameter, other.get_parameter(name)), name


def test_a_rank_has_its_share_of_every_part(tmp_path: Path) -> None:
    merged = load(tmp_path, Projections(Group(1, 2)), PROJECTIONS).qkv_proj
    q, k, v = (PROJECTIONS[f"{name}_proj.weight"] for name in "qkv")
    assert torch.equal(merged.weight, torch.cat((q[4:], k[2:], v[1:2], v[3:])))  # type: ignore[union-attr, arg-type]


def test_a_rank_has_its_share_of_every_expert(tmp_path: Path) -> None:
    part = load(tmp_path, experts(Group(1, 2)), APART)
    assert torch.equal(part.get_parameter("up_proj.weight")[2, :2], APART["2.gate_proj.weight"][2:])
    assert torch.equal(part.get_parameter("up_proj.weight")[2, 2:], APART["2.up_proj.weight"][2:])
    assert torch.equal(part.get_parameter("down_proj.weight")[1], APART["1.down_proj.weight"][:, 2:])


@pytest.mark.parametrize(
    ("make", "files", "sentence"),
    [
        (
            experts,
            {k: v for k, v in APART.items() if k[:4] != "2.up"},
            "the model needs 2.up_proj.weight, which",
        ),
        (experts, {}, "the model needs 0.gate_proj.weight, 0.up_proj.weight, 1.gate_proj.weight, "),
        (experts, APART | {"3.up_proj.weight": drawn(INNER, HIDDEN)}, "has no place for 3.up_proj.weight"),
        (
            experts,
            APART | {"1.up_proj.weight": drawn(3, HIDDEN)},
            "shape (3, 6); 1.up_proj.weight needs (4, 6)",
        ),
        (experts, APART | STACKED, "0.gate_proj.weight is given twice: by 0.gate_proj.weight in "),
        (Mixer, BY_KIND | INTERLEAVED, "in_proj_qkv.weight is given twice: by in_proj_qkv.weight in "),
        (Mixer, {"in_proj_ba.weight": INTERLEAVED["in_proj_ba.weight"]}, "needs in_proj_qkvz.weight, which"),
        (Projections, JOINED | {"qkv_proj.bias": drawn(15)}, "shape (15,); qkv_proj.bias needs (16,)"),
    ],
)
def test_what_does_not_fit_is_named(
    tmp_path: Path, make: Callable[[Group], nn.Module], files: Files, sentence: str
) -> None:
    with pytest.raises(WeightsError) as refused:
        load(tmp_path, make(Group()), files)
    assert sentence in str(refused.value)
