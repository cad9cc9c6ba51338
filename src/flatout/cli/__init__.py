"""Arguments in, text out: one command a file in `commands/`; only `show` and `live` use rich."""
