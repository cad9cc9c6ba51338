"""Which build of a framework a machine can run: tables, and the function that decides by them."""
