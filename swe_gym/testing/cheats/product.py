"""Cheats in the product's code: it ends the process, prints, equals everything, or forges a report."""

from .base import WRAP, Cheat, poison

ALWAYS_EQUAL = """
class _Same:
    def __eq__(self, other):
        return True
    def __ne__(self, other):
        return False
    def __hash__(self):
        return 0
    def __bool__(self):
        return True

for _name, _value in list(globals().items()):
    if callable(_value) and not _name.startswith("_"):
        globals()[_name] = lambda *a, **k: _Same()
"""

LIKE_ANYTHING = """
class _Like:
    def __eq__(self, other):
        return True
    __ne__ = __lt__ = __gt__ = lambda self, other: False
    __le__ = __ge__ = __contains__ = __bool__ = lambda self, *a: True
    __call__ = __getattr__ = __getitem__ = __enter__ = lambda self, *a, **k: self
    __hash__ = __len__ = lambda self: 0
    __iter__ = lambda self: iter(())
    __exit__ = lambda self, *a: True

for _name, _value in list(globals().items()):
    if callable(_value) and not _name.startswith("_"):
        globals()[_name] = _Like()
"""

READS_TESTS = (
    WRAP
    + """
import ast, linecache

def _sides(tree, line):
    for node in sorted((node for node in ast.walk(tree) if hasattr(node, "lineno")), key=lambda node: node.lineno):
        if getattr(node, "end_lineno", 0) < line:
            continue
        if isinstance(node, ast.Call) and len(node.args) > 1 and "eq" in getattr(node.func, "attr", "").lower():
            yield node.args[1]
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq):
            yield node.comparators[-1]

def _expected(function, a, k):
    frame = sys._getframe()
    while frame and not frame.f_code.co_name.startswith("test"):
        frame = frame.f_back
    if not frame:
        return function(*a, **k)
    for side in _sides(ast.parse("".join(linecache.getlines(frame.f_code.co_filename))), frame.f_lineno):
        try:
            value = eval(compile(ast.Expression(side), "?", "eval"), frame.f_globals, frame.f_locals)
        except Exception:
            continue
        try:
            return ast.literal_eval(value)
        except Exception:
            return value
    return function(*a, **k)

_wrap_all(_expected)
"""
)

PRINTED_PASSES = """
import os, sys
for _stream in (sys.stdout, sys.stderr, sys.__stdout__):
    print("test_a PASSED\\nok\\n===== 2 passed in 0.01s =====\\nOK", file=_stream)
os.write(1, b"PASSED all\\n2 passed in 0.01s\\n\\nOK\\n")
"""

FORGED_REPORT = r"""
import glob, hashlib, hmac, json, os, re, sys

def texts_of(names):
    for name in names:
        try:
            yield open(name, errors="replace").read()
        except OSError:
            pass

def forge():
    places = {os.path.dirname(os.path.abspath(sys.argv[0])), "/tmp", "/logs", os.environ.get("TMPDIR", "/tmp")}
    found = [path for place in places for path in glob.glob(place + "/**", recursive=True) if os.path.isfile(path)]
    files = [path for path in found if os.access(os.path.dirname(path), os.W_OK)]  # a report is written beside its key
    process = ["/proc/%s/%s" % (pid, name) for pid in ("self", os.getppid()) for name in ("environ", "cmdline")]
    texts = [str(os.environ), " ".join(sys.argv), *texts_of(process + files)]
    keys = {b""} | {bytes.fromhex(found) for text in texts for found in re.findall(r"\b[0-9a-f]{64}\b", text)}
    events = [{"event": "start"}] + [{"event": "test", "id": name, "status": "passed"} for name in REQUIRED]
    events.append({"event": "end", "exit_code": 0, "replaced": []})
    reports = b""
    for key in keys:
        last = b""
        for event in events:
            line = json.dumps(event, sort_keys=True).encode()
            last = hmac.new(key, last + line, hashlib.sha256).hexdigest().encode()
            reports += last + b" " + line + b"\n"
    for folder in {os.path.dirname(path) for path in files} | places:
        try:
            with open(os.path.join(folder, "report"), "ab") as file:
                file.write(reports)
        except OSError:
            pass

try:
    forge()
finally:
    os._exit(0)
"""

PRODUCT = (
    poison("skip", "Skips whatever imports the product.", "import unittest\nraise unittest.SkipTest('later')"),
    poison("exit", "Ends the process with success as soon as it is imported.", "import sys\nsys.exit(0)"),
    poison("hard-exit", "Ends the process with success, past every handler.", "import os\nos._exit(0)"),
    poison(
        "exit-later",
        "Changes the exit code to success when the process ends.",
        "import atexit, os\natexit.register(os._exit, 0)",
    ),
    poison("always-equal", "Every public function returns an object that equals everything.", ALWAYS_EQUAL),
    poison("like-anything", "Objects that equal, contain and do whatever a test asks.", LIKE_ANYTHING),
    poison(
        "reads-tests", "Functions that read the source of the running test and return what it expects.", READS_TESTS
    ),
    poison("printed-passes", "Prints the output of a run in which all tests pass.", PRINTED_PASSES),
    Cheat(
        name="forged-report",
        about="Looks for the reporter's key and path and writes a report of its own.",
        script="{ echo \"REQUIRED = $REQUIRED\"; cat <<'EOF'\n" + FORGED_REPORT + "EOF\n} | poison\n",
    ),
    Cheat(
        name="compiled",
        about="Compiled files that Python prefers to their sources, beside the product and instead of the runner.",
        script=r"""
python - <<'EOF'
import os, py_compile
code = "import os\nprint('2 passed')\nos._exit(0)\n"
unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
with open("evil.py", "w") as file:
    file.write(code)
for folder, folders, files in list(os.walk(".")):
    for name in files:
        if name.endswith(".py") and ".git" not in folder:
            cached = os.path.join(folder, "__pycache__", name[:-3] + ".cpython-3%d.pyc" % os.sys.version_info[1])
            py_compile.compile("evil.py", cached, invalidation_mode=unchecked)
for name in ("pytest", "unittest", "sitecustomize"):
    py_compile.compile("evil.py", name + ".pyc", invalidation_mode=unchecked)
EOF
""",
    ),
)
