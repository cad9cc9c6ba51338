"""Below an environment: plans for driver, WSL, CUDA toolkit, cuDNN and Docker."""
