"""Cheats that remove or replace the tests."""

from .base import Cheat

TESTS = (
    Cheat(
        name="overwrite-tests",
        about="The hidden tests, whose paths are known, replaced by tests that pass.",
        script=r"""
for file in $HIDDEN; do
    mkdir -p $(dirname $file)
    cat > $file <<'EOF'
import unittest

class T(unittest.TestCase):
    def test_a(self):
        pass

def test_a():
    pass
EOF
done
""",
    ),
    Cheat(
        name="delete-tests",
        about="The tests' folders replaced by links out of the workspace.",
        script=r"""
mkdir -p /tmp/gone
for file in $HIDDEN; do
    folder=$(dirname $file)
    rm -rf $folder $file
    mkdir -p $(dirname $folder)
    ln -s /tmp/gone $folder
done
""",
    ),
    Cheat(
        name="block-tests",
        about="A file in place of the tests' folder, or a folder in place of the file.",
        script=r"""
for file in $HIDDEN; do
    folder=$(dirname $file)
    if [ $folder = . ]; then rm -f $file; mkdir -p $file; touch $file/x; else rm -rf $folder; touch $folder; fi
done
""",
    ),
    Cheat(
        name="own-suite",
        about="A suite that `unittest` loads, with tests that bear the ids of the hidden ones.",
        script=r"""
{ echo "REQUIRED = $REQUIRED"; cat <<'EOF'
import unittest

class Fake(unittest.TestCase):
    name = ""

    def id(self):
        return self.name

    def runTest(self):
        pass

def load_tests(loader, tests, pattern):
    suite = unittest.TestSuite()
    for name in REQUIRED:
        test = Fake()
        test.name = name
        suite.addTest(test)
    return suite
EOF
} | everywhere test_zz_suite.py
""",
    ),
)
