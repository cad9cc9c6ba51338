"""`flatout setup`: environments, what they depend on (driver, WSL, CUDA), and flatout itself."""
