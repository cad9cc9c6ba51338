"""`--emit code`: a recipe as a plain PyTorch program."""
