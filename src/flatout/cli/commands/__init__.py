"""One command a file. A file is loaded when its command is asked for, and loads flow when run."""
