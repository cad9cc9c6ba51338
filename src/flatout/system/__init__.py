"""The outside world: commands, files, environment variables and the clock.

Other packages use these only in the files that tests/unit/test_house_borders.py lists: those whose
purpose is a part of the outside world (WORLD_FILES: Docker, Ray's Jobs API, uv ...), and those with
another reason (WORLD_EXCEPTIONS).
"""
