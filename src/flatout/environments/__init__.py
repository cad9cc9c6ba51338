"""The verbs of `flatout setup`: what `flow` is to training. `prepare` first, then `make`."""
