"""A model and its drafter, if it has one: what they keep, and how they absorb a step together."""

from __future__ import annotations

from torch import Tensor, nn

from ..layers.batch import Batch
from ..memory.spec import KVSpec, StateSpec
from ..models.base import CausalLM
from .drafter import Drafter, Features


class Ensemble(nn.Module):
    def __init__(self, model: CausalLM, drafter: Drafter | None = None) -> None:
        super().__init__()
        self.model, self.drafter = model, drafter

    def forward(self, batch: Batch, absorbs: bool = True) -> Tensor:
        """The model's hidden states [tokens, hidden]. The drafter absorbs the tokens as well, or remembers them."""
        if self.drafter is None:
            return self.model(batch)
        features = Features(*self.model.features(batch, self.drafter.reads))
        take = self.drafter.absorb if absorbs else self.drafter.remember
        take(batch, features)
        return features.hidden

    @property
    def recordable(self) -> bool:
        """Nobody has to ask the device about a step of windows."""
        return self.model.recordable and (self.drafter is None or self.drafter.recordable)

    def state_specs(self) -> dict[str, StateSpec]:
        return {**self.model.state_specs(), **(self.drafter.state_specs() if self.drafter else {})}

    def kv_specs(self) -> dict[str, KVSpec]:
        return {**self.model.kv_specs(), **(self.drafter.kv_specs() if self.drafter else {})}
