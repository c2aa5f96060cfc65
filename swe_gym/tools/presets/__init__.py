"""The tools of other systems, under their very names and parameters, over the same working parts as our own.

Observations have the shape that models trained with those systems know. The faults of those systems are not kept:
an edit that did not happen is an error, tabs stay tabs, a timeout keeps the output, every exit code is told.
"""
