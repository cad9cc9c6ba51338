"""The things flatout speaks of: frozen structs without I/O, JSON both ways."""
