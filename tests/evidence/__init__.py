"""The rules of evidence: what a conformance test must show before it may say that two computations agree."""
