"""The rules of evidence: what a conformance test must show before it may say that two computations agree.

models    tiny random models in hub format, scaled so that state matters
oracle    what transformers computes for them: greedy tokens, log-probabilities, margins
rules     when tokens and log-probabilities count as equal, and when a test proves anything at all
control   the negative control: damage to any single layer's state must show
library   models and oracles, made once a session
"""

from .control import Fault, assert_state_matters, changes, damaged_logprobs
from .library import Library
from .models import MODELS, VOCAB, TinyModel, build, random_prompt
from .oracle import Oracle, OracleRun
from .rules import Verdict, assert_evidence, compare

__all__ = [
    "MODELS",
    "VOCAB",
    "Fault",
    "Library",
    "Oracle",
    "OracleRun",
    "TinyModel",
    "Verdict",
    "assert_evidence",
    "assert_state_matters",
    "build",
    "changes",
    "compare",
    "damaged_logprobs",
    "random_prompt",
]
