"""python -m training prepare | train | drafters | recall"""

from __future__ import annotations

import importlib
import sys

COMMANDS = ("prepare", "train", "drafters", "recall")

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in COMMANDS:
        sys.exit(f"usage: python -m training {{{','.join(COMMANDS)}}} [--help]")
    importlib.import_module(f".{sys.argv[1]}", __package__).main(sys.argv[2:])
