"""The verbs of `flatout cluster`: containers of this machine as if they were machines."""
