"""What `flatout profile -- python train.py` puts first on the path of the program's Python."""
