"""EAGLE's and EAGLE-3's files: heads that were trained to draft for one model.

One layer of attention; or, in EAGLE's format, of a gated delta net. No such head is published: its files are EAGLE's
with `layer_types: ["linear_attention"]` and the `linear_*` fields and `linear_attn.*` tensors of Qwen3.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..config import ConfigError
from ..layers.batch import Build
from ..layers.delta_net import DeltaNetShape
from ..layers.eagle import EagleHead, EagleOneHead, EagleShape, EagleThreeHead
from . import llama, qwen3_5
from .base import CausalLM, Rename, renamer
from .drafting import check_fits, layers_read
from .fields import Fields


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

    def build(self, build: Build, model: CausalLM, name: str = "eagle") -> EagleHead:
        """To draft for that model."""
        check_fits(model, vocab=self.vocab, hidden=self.shape.hidden)
        if not self.three:
            return EagleOneHead(build, name, self.shape, bias=self.fc_bias, logits=model.logits)
        read = len(self.reads(len(model.blocks)))
        return EagleThreeHead(
            build, name, self.shape, layers=read, vocab=self.vocab, draft_vocab=self.draft_vocab
        )

    def reads(self, layers: int) -> tuple[int, ...]:
        """Of a model with so many: those whose output it wants."""
        if not self.three:
            return ()
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
                (layer + r"linear_attn\.conv1d\.weight", r"mixer.conv_weight"),
                (layer + r"linear_attn\.A_log", r"mixer.a_log"),
                (layer + r"linear_attn\.norm\.weight", r"mixer.norm_weight"),
                (layer + r"(?:linear_attn|self_attn)\.(.*)", r"mixer.\1"),
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
    delta_net = _delta_net(fields, hidden, three=three)
    found = llama.read(fields)
    shape = EagleShape(
        found.hidden,
        found.inner,
        found.eps,
        found.attention,
        found.rotary,
        mlp_bias=found.mlp_bias,
        delta_net=delta_net,
    )
    return EagleConfig(shape, vocab, three, draft_vocab, layer_ids, bias)


def _delta_net(fields: Fields, hidden: int, *, three: bool) -> DeltaNetShape | None:
    """Of a head whose one layer is recurrent; described as in a model's config."""
    kinds = fields.items("layer_types", qwen3_5.KINDS, length=1) if "layer_types" in fields else ()
    if "linear_attention" not in kinds:
        return None
    if three:
        raise ConfigError(
            "speculative_config: layer_types=['linear_attention'] is for heads in EAGLE's format: "
            "a delta net reads one vector, and EAGLE-3's layer two"
        )
    return qwen3_5.read_delta_net(fields, hidden, fields.number("rms_norm_eps", default=1e-6))


def _layer_ids(group: Fields) -> tuple[int, ...] | None:
    for name in ("use_aux_hidden_state", "use_input_layernorm_in_first_layer", "use_last_layernorm"):
        group.only(name, True)
    group.only("use_mtp_layernorm", False)
    name = "eagle_aux_hidden_state_layer_ids"
    found = group.items(name) if name in group else None
    group.ignore(name)
    group.finish()
    return found
