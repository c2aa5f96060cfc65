"""What was imported before the debugger: the first module of the program."""

import sys

STARTED_WITH = set(sys.modules)  # modules imported later are the debugger's, not the program's
