"""The text of a new experiment, put together from pieces: a source of data, a model, a task.

Each piece is plain Python as it will stand in the file, with `$name` where something is filled in.
"""
