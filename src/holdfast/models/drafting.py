"""What the files of a drafter must have in common with the model that it reads."""

from __future__ import annotations

from ..config import ConfigError
from .base import CausalLM


def check_fits(model: CausalLM, *, vocab: int, hidden: int) -> None:
    """A drafter of these sizes beside the model that it reads."""
    sizes = zip(("vocab", "hidden"), (vocab, hidden), model.embed.weight.shape, strict=True)
    for what, own, wanted in sizes:
        if own != wanted:
            raise ConfigError(
                f"speculative_config: the drafter has {what}_size={own}, the model {wanted}; "
                "a drafter fits the model that it was trained for"
            )


def layers_read(reads: tuple[int, ...], layers: int) -> tuple[int, ...]:
    """Checked against the model's."""
    if not reads or not all(type(i) is int and 0 <= i < layers for i in reads):
        raise ConfigError(
            f"speculative_config: the drafter reads layers {list(reads)} of the model, which has {layers}, from 0 on"
        )
    return reads
