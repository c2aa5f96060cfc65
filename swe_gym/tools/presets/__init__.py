"""The tools of other systems, with their names and parameters, on the same code as our own.

Observations have the shape that models trained with those systems know. Those systems' faults are fixed: a failed edit
is an error, tabs stay tabs, a timeout keeps the output, and every exit code is reported.
"""
