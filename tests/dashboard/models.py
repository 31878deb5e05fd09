"""A model that never ends, and one that says nothing but what would like to be more than text."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file
from tests.random_model import IM_END, write_random_model
from tokenizers import AddedToken, Tokenizer

MARKUP = (
    "<img src=x onerror='window.pwned=1'>",
    "<script>window.pwned=1</script>",
    "</div></main><iframe srcdoc='<script>parent.pwned=1</script>'></iframe>",
    "<a href='javascript:window.pwned=1'>here</a>",
    "<svg onload='window.pwned=1'>",
    "<style>*{display:none}</style>",
    "${window.pwned=1}{{constructor.constructor('window.pwned=1')()}}",
    "\u202e\u0000<b>",
)
NAME = MARKUP[0] + MARKUP[1]


def write_endless_model(directory: Path) -> None:
    """At temperature 0, that is."""
    write_random_model(directory)
    weights = load_file(directory / "model.safetensors")
    weights["lm_head.weight"][IM_END] = 0
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})


def write_hostile_model(directory: Path) -> None:
    """Whatever it is told, each of its tokens is one of MARKUP, all of them equally likely."""
    write_random_model(directory)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in MARKUP])
    tokenizer.save(str(directory / "tokenizer.json"))
    config = json.loads((directory / "config.json").read_text())
    config["vocab_size"] = tokenizer.get_vocab_size()
    (directory / "config.json").write_text(json.dumps(config))
    weights = load_file(directory / "model.safetensors")
    for name, tensor in weights.items():
        if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
            tensor[:] = 0  # the hidden state stays what the embedding was: ones
    size = config["vocab_size"], config["hidden_size"]
    head = np.zeros(size, np.float32)
    head[-len(MARKUP) :] = 1
    weights["lm_head.weight"] = head
    weights["model.embed_tokens.weight"] = np.ones(size, np.float32)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
