"""Plans for what lies below an environment: driver, WSL, CUDA toolkit, containers."""
