"""Mutation testing of what owns and moves state: `make mutate`, or `python -m tests.mutation`."""
