"""A model and its drafter, if it has one: what they keep, and how they absorb a step together."""

from __future__ import annotations

from torch import Tensor, nn

from ..layers.batch import Batch
from ..memory.spec import KVSpec, StateSpec
from ..models.base import CausalLM
from ..ops.places import ToKeep
from .drafter import Drafter, Features


class Ensemble(nn.Module):
    def __init__(self, model: CausalLM, drafter: Drafter | None = None) -> None:
        super().__init__()
        self.model, self.drafter = model, drafter

    def forward(self, batch: Batch, absorbs: bool = True) -> tuple[Tensor, ToKeep | None]:
        """The model's hidden states [tokens, hidden]. The drafter absorbs the tokens as well; or, if there is
        something that it must remember of them, that is still to be kept."""
        if self.drafter is None:
            return self.model(batch), None
        features = Features(*self.model.features(batch, self.drafter.reads))
        if not absorbs:
            return features.hidden, self.drafter.remember(batch, features)
        self.drafter.absorb(batch, features)
        return features.hidden, None

    @property
    def recordable(self) -> bool:
        """Nobody has to ask the device about a step of windows."""
        return self.model.recordable and (self.drafter is None or self.drafter.recordable)

    def state_specs(self) -> dict[str, StateSpec]:
        return {**self.model.state_specs(), **(self.drafter.state_specs() if self.drafter else {})}

    def kv_specs(self) -> dict[str, KVSpec]:
        return {**self.model.kv_specs(), **(self.drafter.kv_specs() if self.drafter else {})}
