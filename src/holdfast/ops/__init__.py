"""Operations on plain tensors. Each folder holds one: its contract, its reference, its faster twins."""
