"""Turns a StepPlan into device work, and its outcome into a StepResult. It decides nothing."""
