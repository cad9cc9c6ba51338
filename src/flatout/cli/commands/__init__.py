"""One command per file, loaded when used; the rest is imported when it runs."""
