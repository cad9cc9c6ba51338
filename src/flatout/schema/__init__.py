"""Data that crosses a process or package border: frozen structs, JSON both ways, no I/O."""
