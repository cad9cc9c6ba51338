"""`flatout new`: an experiment's file, assembled from a source of data, a model and a task.

The texts are in templates/: plain Python apart from `$name`, which is replaced when the file is
written (write.py). The modules choose which templates make up a file, and what their names mean.
"""
