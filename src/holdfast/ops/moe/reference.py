"""Mixture of experts, in plain torch: a router chooses for each token, an expert takes its tokens all at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ...config import ConfigError

GROUP_VOTES = 2
"""A group of experts is as good as its best two together."""


@dataclass(frozen=True)
class Routing:
    """How a router's logits become a token's experts and their weights.

    experts     to choose from
    chosen      experts per token
    score       "softmax" over all experts, or each one's own "sigmoid"
    normalised  the weights of the chosen are divided by their sum, to which `eps` is added
    scale       then multiplies them
    groups      equal parts of the experts, of which the best `chosen_groups` are open to a token
    """

    experts: int
    chosen: int
    score: str = "softmax"
    normalised: bool = True
    eps: float = 0.0
    scale: float = 1.0
    groups: int = 1
    chosen_groups: int = 1

    def __post_init__(self) -> None:
        size, rest = divmod(self.experts, self.groups)
        if rest or (self.groups > 1 and size < GROUP_VOTES) or self.chosen_groups > self.groups:
            raise ConfigError(
                f"config.json: {self.experts} experts cannot be in {self.groups} groups "
                f"of which {self.chosen_groups} are open to a token"
            )
        if self.chosen > self.chosen_groups * size:
            raise ConfigError(
                f"config.json: num_experts_per_tok={self.chosen}, but {self.chosen_groups * size} are open to a token"
            )


def route(logits: Tensor, bias: Tensor | None, routing: Routing) -> tuple[Tensor, Tensor]:
    """The experts of every token, and how much each counts.

    logits   [tokens, experts]
    bias     [experts] added to scores when experts are chosen, and not to their weights; None: nothing is
    returns  experts [tokens, chosen] int64, weights [tokens, chosen] float32, best first
    """
    wide = logits.float()
    scores = wide.softmax(-1) if routing.score == "softmax" else wide.sigmoid()
    merit = scores if bias is None else scores + bias
    if routing.groups > 1:
        merit = _in_best_groups(merit, routing)
    experts = merit.topk(routing.chosen, -1).indices
    weights = scores.gather(-1, experts)
    if routing.normalised:
        weights = weights / (weights.sum(-1, keepdim=True) + routing.eps)
    return experts, weights * routing.scale


def _in_best_groups(merit: Tensor, routing: Routing) -> Tensor:
    """The same with -inf for experts of the groups that a token leaves out."""
    grouped = merit.unflatten(-1, (routing.groups, -1))
    best = grouped.topk(GROUP_VOTES, -1).values.sum(-1).topk(routing.chosen_groups, -1).indices
    closed = torch.ones_like(grouped[..., 0], dtype=torch.bool).scatter(-1, best, False)
    return grouped.masked_fill(closed[..., None], -torch.inf).flatten(-2)


def mix(
    x: Tensor, experts: Tensor, weights: Tensor, count: int, expert: Callable[[int, Tensor], Tensor]
) -> Tensor:
    """What a token's experts make of it, weighted and added up.

    x                 [tokens, width]
    experts, weights  [tokens, chosen], of `count` experts in all
    expert            (which one, [its tokens, width]) -> [its tokens, width]; asked once if anyone chose it
    returns           [tokens, width], added in float32 in the order of `experts`, whoever else is in the batch
    """
    if not len(x):
        return x
    order = experts.flatten().argsort(stable=True)
    counts = experts.flatten().bincount(minlength=count).tolist()
    shares = x.index_select(0, order // experts.shape[1]).split(counts)
    said = torch.cat([expert(number, share) for number, share in enumerate(shares) if len(share)])
    by_token = torch.empty_like(said).index_copy_(0, order, said).unflatten(0, experts.shape)
    out = by_token[:, 0].float() * weights[:, :1]
    for place in range(1, experts.shape[1]):
        out = out + by_token[:, place].float() * weights[:, place : place + 1]
    return out.to(x.dtype)
