"""Drafters, and the verification of what they guess. No drafter touches the model's state or config."""
