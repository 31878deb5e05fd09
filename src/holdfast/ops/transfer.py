"""Numbers from the host to a device, without waiting for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def to_device(values: Any, device: torch.device, dtype: torch.dtype = torch.int64) -> Tensor:
    """Of whatever torch.tensor takes."""
    made = torch.tensor(values, dtype=dtype)
    if device.type == "cpu":
        return made
    return made.pin_memory().to(
        device, non_blocking=True
    )  # else the copy would wait for all that was launched
