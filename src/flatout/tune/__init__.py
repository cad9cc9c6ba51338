"""The choice of the fastest correct recipe: candidates, the search, and earlier decisions.

Pure: no torch, no clock, no files. `engine/tuner/driver.py` carries out what is decided here.
"""
