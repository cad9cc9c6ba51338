"""Docker Compose: the files of a cluster as text, and what Docker prints, parsed."""
