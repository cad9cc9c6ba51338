"""The built-in experiments, written like users' experiments. Only the engine loads them."""
