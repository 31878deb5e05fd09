"""Drafters are trained as they are used: what is computed for all starts at once is what one start would give."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from training.chains import Eagle3, Links, MTPChain, draft, eagle3_config
from training.dflash import DFlash, dflash_config
from training.models import Qwen35
from training.train import one_later

from training import hub

LENGTH, DEPTH, START = 24, 4, 11


def drawn(module: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for it in module.parameters():
            noise = torch.randn(it.shape, generator=generator)
            it.copy_(noise * it[0].numel() ** -0.5 if it.dim() > 1 else it + 0.2 * noise)
    return module.eval()


@pytest.fixture
def target() -> Qwen35:
    model = drawn(Qwen35(hub.TINY_SMALL))
    assert isinstance(model, Qwen35)
    return model


def eagle3() -> Eagle3:
    config = eagle3_config(hub.TINY_SMALL, layer_ids=[0, 1, 3], vocabulary=64, inner=48)
    made = drawn(Eagle3(config, torch.arange(0, 128, 2)))
    assert isinstance(made, Eagle3)
    return made


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


def one_chain(drafter: MTPChain | Eagle3, embedding: Tensor, first: Tensor, start: int) -> list[Tensor]:
    """Step by step, everything before computed again each time, with causal attention over what was read."""
    before, found = first[:, : start + 1], []
    for step in range(DEPTH):
        links = Links()
        out, said = drafter(embedding[:, : start + 1 + step], before, links)
        found.append(said[:, -1])
        before = torch.cat((before, out[:, -1:]), 1)
    return found


@pytest.mark.parametrize("kind", ["mtp", "eagle3"])
@torch.no_grad()
def test_all_chains_at_once_are_each_chain_alone(kind: str, target: Qwen35) -> None:
    drafter = MTPChain(target) if kind == "mtp" else eagle3()
    embedding, first = noise(2, LENGTH, 32), one_later(noise(2, LENGTH, 32))
    together = draft(drafter, embedding, first, DEPTH)
    alone = one_chain(drafter, embedding, first, START)
    for step in range(DEPTH):
        torch.testing.assert_close(together[step][:, START], alone[step], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_a_chains_first_step_is_the_head_trained_with_the_model(target: Qwen35) -> None:
    embedding, first = noise(2, LENGTH, 32), one_later(noise(2, LENGTH, 32))
    [found] = draft(MTPChain(target), embedding, first, 1)
    torch.testing.assert_close(found, target.mtp(embedding, first), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_a_block_sees_what_is_before_it_and_itself() -> None:
    size = 4
    config = dflash_config(hub.TINY_SMALL, layer_ids=[0, 1, 3], layers=2, inner=48, block=size, mask=3)
    drafter = drawn(DFlash(config))
    blocks, features = noise(1, 3, size, 32), list(noise(3, 1, LENGTH, 32))
    anchors = torch.tensor([5, START, 20])
    together = drafter(blocks, features, anchors)
    before = [it[:, :START] for it in features]  # the known token's own features are not known yet
    alone = drafter(blocks[:, 1:2], before, anchors[1:2])
    torch.testing.assert_close(together[:, 1:2], alone, atol=1e-5, rtol=1e-5)
    other = drafter(blocks[:, 1:2], [it + 1 for it in before], anchors[1:2])
    assert not torch.allclose(alone, other, atol=1e-2)


def test_drafters_are_saved_as_the_hub_has_them(tmp_path: Path) -> None:
    made = eagle3()
    hub.save(tmp_path, made.config, made.state_dict())
    names = {name.partition(".")[0] for name in made.state_dict()}
    assert names == {"fc", "midlayer", "norm", "lm_head", "d2t", "t2d"}
    vocabulary = made.vocabulary()
    assert vocabulary is not None and vocabulary.tolist() == list(range(0, 128, 2))
    assert torch.equal(made.t2d.nonzero().flatten(), vocabulary)
