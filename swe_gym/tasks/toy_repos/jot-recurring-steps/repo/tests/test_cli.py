import io
import os
import tempfile
import unittest

from jot.cli import main


class CommandLineTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file = os.path.join(folder.name, "todos.json")

    def jot(self, *argv, stdin=""):
        """Run one command and return what it prints, as a list of lines."""
        out = io.StringIO()
        self.status = main(["--file", self.file, *argv], io.StringIO(stdin), out)
        return out.getvalue().splitlines()

    def test_add_and_list(self):
        self.jot("add", "Pay the rent", "--due", "2024-06-01", "--tag", "home")
        self.jot("add", "Pack", "--step", "passport", "--step", "charger")
        self.jot("tick", "2", "1")
        self.assertEqual(self.jot("list"), ["#1 Pay the rent  due 2024-06-01  home", "#2 Pack  1/2"])

    def test_show(self):
        self.jot("add", "Pack", "--step", "passport", "--step", "charger")
        self.jot("tick", "1", "2")
        self.assertEqual(self.jot("show", "1"), ["#1 Pack", "[ ] passport", "[x] charger", "* created"])

    def test_done(self):
        self.jot("add", "Water", "--due", "2024-05-03", "--every", "week")
        self.assertEqual(self.jot("done", "1", "--today", "2024-05-03"), ["done #1, next is #2 on 2024-05-10"])
        self.assertEqual(self.jot("list"), ["#2 Water  due 2024-05-10"])

    def test_shell(self):
        lines = self.jot("shell", stdin='add "Buy milk"\ntag 1 shop\nlist\n')
        self.assertEqual(lines, ["#1 Buy milk", "#1 Buy milk  shop"])
        self.assertEqual(self.jot("list"), ["#1 Buy milk  shop"])

    def test_error(self):
        self.assertEqual(self.jot("done", "7"), ["jot: there is no #7"])
        self.assertEqual(self.status, 1)
