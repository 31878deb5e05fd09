"""Pools, cursors and journals, against a float64 recurrence that knows none of them."""
