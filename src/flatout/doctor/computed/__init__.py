"""What rules cannot say as data: facts of a machine, verdicts with arithmetic, computed fixes.

A rule's file names these functions by "module.function". There is one module for each family.
"""
