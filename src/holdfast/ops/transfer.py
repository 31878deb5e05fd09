"""Numbers from the host to a device, without waiting for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def to_device(
    values: Any, device: torch.device, dtype: torch.dtype = torch.int64, *, into: Tensor | None = None
) -> Tensor:
    """Of whatever torch.tensor takes; to a new tensor, or `into` one."""
    made = torch.tensor(values, dtype=dtype)
    if device.type != "cpu":
        made = made.pin_memory()  # else the copy would wait for all that was launched
    return made.to(device, non_blocking=True) if into is None else into.copy_(made, non_blocking=True)
