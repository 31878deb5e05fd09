"""The museum: published defects of serving engines, planted in this one, and what catches each.

`fault.py` says what a fault is, the files beside it hold them by subject, `museum.py` lists them all and
`python -m tests.faults` writes docs/museum.md.
"""
