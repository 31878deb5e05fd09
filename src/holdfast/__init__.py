"""Holdfast: a serving engine for hybrid language models."""
