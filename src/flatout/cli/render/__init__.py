"""All output: tables, the live display, wording. The only importers of rich."""
