"""A model's own answers to many questions at once, token by token."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .models import Model


@torch.no_grad()
def answers(
    model: Model, questions: list[np.ndarray], length: int, *, temperature: float, end: int
) -> Tensor:
    """[questions, length] each question, its answer, and `end` as padding behind the answer's own end.

    Questions are read token by token as well, while others are already answered: one position for all rows.
    """
    device = next(model.parameters()).device
    given = torch.full((len(questions), length), -1, device=device)
    for row, question in enumerate(questions):
        known = question[: length - 1].astype(np.int64)
        given[row, : len(known)] = torch.from_numpy(known).to(device)
    memory = model.new_memory()
    ended = torch.zeros(len(questions), dtype=torch.bool, device=device)
    token = given[:, 0]
    said = [token]
    for position in range(length - 1):
        logits = model.step(token, memory, position, length).float()
        if temperature:
            noise = -torch.empty_like(logits).exponential_().log()
            logits = logits / temperature + noise
        chosen = logits.argmax(-1).masked_fill(ended, end)
        asked = given[:, position + 1]
        token = torch.where(asked >= 0, asked, chosen)
        ended |= (asked < 0) & (token == end)
        said.append(token)
    return torch.stack(said, 1)
