"""One rule a file, named after its id; `families` lists them. How to add one: docs/rules.md."""
