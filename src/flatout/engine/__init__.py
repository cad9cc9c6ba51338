"""Training behind the process border: the one place, with the built-ins, that imports torch.

For notebooks: `flatout.engine.train(flatout.engine.Experiment(...))`.
"""
