"""EAGLE: a head trained for the model guesses the next token, and then again from what it made of its own guess.

As with MTP it reads token i beside a vector of token i - 1. For EAGLE that is the model's last hidden vector, for
EAGLE-3 a mixture of what several of its layers left; where the token is a guess, it is the head's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..config import ConfigError
from ..layers.batch import Batch, Build
from ..layers.eagle import EagleHead, EagleOneHead, EagleShape, EagleThreeHead
from ..models import llama
from ..models.base import CausalLM, Rename, renamer
from ..models.fields import Fields
from .drafter import Draft, Drafter, Features, VerifiedStep, all_meant, check_fits, layers_read
from .mtp import Previous


class Eagle(Drafter):
    def __init__(
        self, depth: int, build: Build, head: EagleHead, model: CausalLM, reads: tuple[int, ...]
    ) -> None:
        super().__init__(depth)
        self.head, self.reads = head, reads
        self.previous = Previous(build, "previous", head.hidden)
        self._embed = model.embed.forward  # the model's: not to be loaded or counted again
        self.name_layers()

    @property
    def trained(self) -> nn.Module:
        return self.head

    def check(self) -> None:
        head = self.head
        if not isinstance(head, EagleThreeHead) or (drafted := head.drafted()) is None:
            return
        if not bool(((drafted >= 0) & (drafted < head.vocab)).all()):
            raise ConfigError(
                f"speculative_config: d2t of the drafter names tokens beyond the model's {head.vocab}; "
                "it was made for another vocabulary"
            )

    def absorb(self, batch: Batch, features: Features) -> None:
        known = self.head.known(features.hidden, features.layers)
        self.head.keep(self._embed(batch.tokens), self.previous(known, batch), batch)

    def propose(self, step: VerifiedStep) -> Draft:
        token, drafts = step.last, []
        hidden: Tensor | None = None
        for by in range(self.depth):
            batch, embedding = step.ahead(by, token), self._embed(token)
            if hidden is None:  # what is kept in its place here is never read
                hidden = self.previous(torch.zeros_like(embedding), batch)
            hidden = self.head(embedding, hidden, batch)
            token = step.choose(self.head.logits(hidden), step.position + by + 1)
            drafts.append(token)
        return all_meant(drafts)


@dataclass(frozen=True)
class EagleConfig:
    """As a drafter's config.json describes it."""

    shape: EagleShape
    vocab: int
    three: bool
    draft_vocab: int
    layer_ids: tuple[int, ...] | None
    """EAGLE-3 reads what these layers leave; None: what those of its inventors do."""
    fc_bias: bool

    def lay_out(self, depth: int, build: Build, model: CausalLM) -> Eagle:
        check_fits(model, vocab=self.vocab, hidden=self.shape.hidden)
        if not self.three:
            head = EagleOneHead(build, "eagle", self.shape, bias=self.fc_bias, logits=model.logits)
            return Eagle(depth, build, head, model, ())
        reads = self.reads(len(model.blocks))
        three = EagleThreeHead(
            build, "eagle", self.shape, layers=len(reads), vocab=self.vocab, draft_vocab=self.draft_vocab
        )
        return Eagle(depth, build, three, model, reads)

    def reads(self, layers: int) -> tuple[int, ...]:
        """Of a model with so many."""
        usual = (1, layers // 2 - 1, layers - 4)
        return layers_read(usual if self.layer_ids is None else self.layer_ids, layers)

    @property
    def rename(self) -> Rename:
        layer = r"(?:model\.)?(?:midlayer|layers\.0)\."
        return renamer(
            (
                (layer + r"input_layernorm\.(.*)", r"embedding_norm.\1"),
                (layer + r"hidden_norm\.(.*)", r"hidden_norm.\1"),
                (layer + r"post_attention_layernorm\.(.*)", r"mlp_norm.\1"),
                (layer + r"self_attn\.rotary_emb\..*", None),
                (layer + r"self_attn\.(.*)", r"attention.\1"),
                (layer + r"(mlp\..*)", r"\1"),
                (r"(?:model\.)?embed_tokens\..*", None),  # the model's
                (r"t2d", None),  # says the same as d2t
                (r"d2t", None if self.draft_vocab == self.vocab else "d2t"),
                (r"lm_head\.(.*)", r"lm_head.\1" if self.three else None),
                (r"model\.(.*)", r"\1"),
            )
        )


def parse(values: Mapping[str, Any], where: str) -> EagleConfig:
    fields = Fields(values, where)
    names = values.get("architectures") or []
    three = "draft_vocab_size" in fields or "eagle_config" in fields or any("Eagle3" in str(n) for n in names)
    fields.only("num_hidden_layers", 1)
    vocab, hidden = fields.integer("vocab_size"), fields.integer("hidden_size")
    draft_vocab = fields.integer("draft_vocab_size", default=vocab)
    layer_ids, bias = None, True
    if three:
        fields.only("target_hidden_size", None, hidden)
        fields.only("norm_before_residual", False)
        layer_ids = _layer_ids(fields.group("eagle_config"))
    else:
        bias = fields.flag("bias", default=True)
    found = llama.read(fields)
    shape = EagleShape(
        found.hidden, found.inner, found.eps, found.attention, found.rotary, mlp_bias=found.mlp_bias
    )
    return EagleConfig(shape, vocab, three, draft_vocab, layer_ids, bias)


def _layer_ids(group: Fields) -> tuple[int, ...] | None:
    for name in ("use_aux_hidden_state", "use_input_layernorm_in_first_layer", "use_last_layernorm"):
        group.only(name, True)
    group.only("use_mtp_layernorm", False)
    name = "eagle_aux_hidden_state_layer_ids"
    found = group.items(name) if name in group else None
    group.ignore(name)
    group.finish()
    return found
