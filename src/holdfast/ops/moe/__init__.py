"""Mixture of experts: which experts see a token, and what they say of it."""
