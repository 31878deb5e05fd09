"""What torch has taken of a GPU."""

from __future__ import annotations

import torch


class GpuMemory:
    """Since this was made, in bytes. *Reserved* is what nobody else can have: torch takes segments, and keeps them
    when nothing lies in them any more. *Allocated* is what tensors lie in."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        torch.cuda.init()  # its statistics cannot be asked for before
        self._reserved = self._allocated = 0
        self._reserved, self._allocated = self.settle(), self.allocated

    def settle(self) -> int:
        """Segments that nothing lies in are given back, and `peak` begins anew. What is reserved then."""
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)
        return torch.cuda.memory_reserved(self._device) - self._reserved

    @property
    def allocated(self) -> int:
        return torch.cuda.memory_allocated(self._device) - self._allocated

    @property
    def reserved(self) -> int:
        return torch.cuda.memory_reserved(self._device) - self._reserved

    @property
    def peak(self) -> int:
        """The most that was reserved at once."""
        return torch.cuda.max_memory_reserved(self._device) - self._reserved

    @property
    def free(self) -> int:
        """For anybody."""
        return torch.cuda.mem_get_info(self._device)[0]

    @property
    def available(self) -> int:
        """What is free, and what was taken since: device code and the libraries' own memory are in neither."""
        return self.free + self.reserved
