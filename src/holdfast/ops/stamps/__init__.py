"""Checks of the sanitizer that are recorded with a step: `memory.sanitizer` does the same for any other step."""
