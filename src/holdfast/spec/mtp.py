"""Multi-token prediction: the model's own head guesses the token after next, and then again from its own guess.

What it reads at position i is token i and the hidden vector at i - 1: the model's, or the head's own for a token
that is a guess itself. Nothing is before position 0, and a vector of zeros stands there.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..layers.batch import Batch, Build
from ..layers.mtp import MTPHead
from ..memory.spec import ConvSpec, StateSpec
from ..models.base import CausalLM, Rename, renamer
from ..ops.places import ToKeep
from .drafter import PATIENCE, Draft, Drafter, Features, VerifiedStep, all_meant


class Previous(nn.Module):
    """The vector of the token before each, kept as a causal convolution keeps its inputs. So a checkpoint has the
    one before its line, and whoever resumes there finds it."""

    shift: Tensor

    def __init__(self, build: Build, name: str, channels: int, *, longer: int = 0) -> None:
        """longer: so many more of a row's vectors can be found in it"""
        super().__init__()
        self.name, self.ops, self.dtype, self.channels = name, build.ops, build.dtype, channels
        kept = ConvSpec(channels, 2, build.dtype, sharded=False, longer=longer)
        self.state_spec = StateSpec(conv={"hidden": kept})
        with torch.device("cpu"):
            taps = torch.tensor([1.0, 0.0], dtype=build.dtype).repeat(channels, 1)
        self.register_buffer("shift", taps, persistent=False)

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        pool = batch.state.layers[self.name].conv["hidden"]
        return self.ops.causal_conv(x, self.shift, None, pool, batch.step).to(self.dtype)

    def to_keep(self, x: Tensor, batch: Batch) -> ToKeep:
        """Of windows, if nothing is asked for."""
        return ToKeep(x, batch.state.layers[self.name].conv["hidden"])

    def of_last(self, batch: Batch) -> Tensor:
        """Of one token for each lane that has no vector yet. What is kept in its place is never read."""
        return self(self.shift.new_zeros(len(batch.tokens), self.channels), batch)

    def kept(self, batch: Batch, back: int = 1) -> Tensor:
        """Of tokens that were kept before, the vectors so many places before each; none is before a row's first."""
        ring = batch.state.layers[self.name].conv["hidden"].ring
        rows, position = batch.step.places_of(len(batch.tokens))
        return ring[rows, (position - back) % ring.shape[1]]


class MTP(Drafter):
    patience = PATIENCE

    def __init__(self, depth: int, build: Build, head: MTPHead, model: CausalLM) -> None:
        super().__init__(depth)
        self.head = head
        self.previous = Previous(build, "previous", head.hidden, longer=self.patience)
        self._embed, self._logits = (
            model.embeddings,
            model.logits,
        )  # the model's: not to be loaded or counted again
        self.name_layers()

    @property
    def trained(self) -> tuple[nn.Module, ...]:
        return (self.head,)

    def absorb(self, batch: Batch, features: Features) -> None:
        self.head.keep(self._embed(batch.tokens), self.previous(features.hidden, batch), batch)

    def remember(self, batch: Batch, features: Features) -> ToKeep:
        return self.previous.to_keep(features.hidden, batch)

    def catch_up(self, batch: Batch) -> None:
        self.head.keep(self._embed(batch.tokens), self.previous.kept(batch), batch)

    def propose(self, step: VerifiedStep) -> Draft:
        token, drafts = step.last, []
        hidden: Tensor | None = None
        for by in range(step.depth):
            batch, embedding = step.ahead(by, token), self._embed(token)
            if hidden is None:
                hidden = self.previous.of_last(batch)
            hidden = self.head(embedding, hidden, batch)
            token = step.choose(self._logits(hidden), by + 1)
            drafts.append(token)
        return all_meant(torch.stack(drafts, 1))


def head_renamer(rename: Rename) -> Rename:
    """Names in the files to names of the head, for a model that renames its own so. Its layers are like the model's;
    what is not the head's is left out."""
    own = renamer(
        (
            (r"mtp\.pre_fc_norm_embedding\.(.*)", r"embedding_norm.\1"),
            (r"mtp\.pre_fc_norm_hidden\.(.*)", r"hidden_norm.\1"),
            (r"mtp\.(fc|norm)\.(.*)", r"\1.\2"),
            (r"(?!mtp\.).*", None),
        )
    )

    def head_rename(name: str) -> str | None:
        layer = name.removeprefix("mtp.layers.")
        return own(name) if layer == name else rename(f"model.layers.{layer}")

    return head_rename
