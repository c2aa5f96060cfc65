import io
import os
import tempfile
import unittest

from threeway import merge
from threeway.__main__ import main


def text(*lines):
    return "".join(line + "\n" for line in lines)


SECTION = ["One", "Two", "Three", "Four", "Five", "Six", "Seven"]
BASE = text("intro", *SECTION, "outro")
REWRITTEN = text("intro", "All of it in one line.", "outro")
CORRECTED = text("intro", "One", "2", "Three", "Four", "Five", "6", "Seven", "outro")


class FavorTest(unittest.TestCase):
    def check(self, base, ours, theirs, favor, expected):
        result = merge(base, ours, theirs, favor=favor)
        self.assertIs(type(result.text), str)
        self.assertEqual(result.text, expected)
        self.assertEqual(repr(result.conflicts), "[]")

    def test_ours_is_rewritten(self):
        self.check(BASE, REWRITTEN, CORRECTED, "ours", REWRITTEN)
        self.check(BASE, REWRITTEN, CORRECTED, "theirs", CORRECTED)

    def test_theirs_is_rewritten(self):
        self.check(BASE, CORRECTED, REWRITTEN, "theirs", REWRITTEN)
        self.check(BASE, CORRECTED, REWRITTEN, "ours", CORRECTED)

    def test_deleted_lines(self):
        shortened = text("intro", "One", "Three", "Four", "Five", "Seven", "outro")
        self.check(BASE, REWRITTEN, shortened, "ours", REWRITTEN)
        self.check(BASE, shortened, REWRITTEN, "ours", shortened)

    def test_inserted_lines(self):
        longer = text("intro", "One", "new", "Two", "Three", "Four", "Five", "new", "Six", "Seven", "outro")
        self.check(BASE, REWRITTEN, longer, "ours", REWRITTEN)
        self.check(BASE, REWRITTEN, longer, "theirs", longer)

    def test_three_corrections(self):
        corrected = text("intro", "1", "Two", "Three", "4", "Five", "Six", "7", "outro")
        self.check(BASE, REWRITTEN, corrected, "ours", REWRITTEN)
        self.check(BASE, REWRITTEN, corrected, "theirs", corrected)

    def test_deleted_section(self):
        self.check(BASE, text("intro", "outro"), CORRECTED, "ours", text("intro", "outro"))

    def test_part_outside_is_merged(self):
        theirs = text("intro", "One", "2", "Three", "Four", "Five", "6", "Seven", "outro", "appendix")
        self.check(BASE, REWRITTEN, theirs, "ours", text("intro", "All of it in one line.", "outro", "appendix"))

    def test_region_that_goes_on_behind_the_rewritten_part(self):
        base = text("a", "b", "c", "d", "e", "f", "g", "h")
        ours = text("a", "X", "f", "g", "h")
        theirs = text("a", "b", "C", "d", "E", "F", "g", "h")
        self.check(base, ours, theirs, "ours", text("a", "X", "f", "g", "h"))
        self.check(base, ours, theirs, "theirs", theirs)

    def test_one_correction(self):
        corrected = text("intro", "One", "2", *SECTION[2:], "outro")
        self.check(BASE, REWRITTEN, corrected, "ours", REWRITTEN)


class ConflictTest(unittest.TestCase):
    def test_one_conflict_with_the_whole_section(self):
        result = merge(BASE, REWRITTEN, CORRECTED)
        self.assertEqual(len(result.conflicts), 1)
        ours, base, theirs = result.conflicts[0]
        self.assertEqual(repr(ours), r"('All of it in one line.\n',)")
        self.assertEqual(base, tuple(line + "\n" for line in SECTION))
        self.assertEqual(
            repr(theirs), r"('One\n', '2\n', 'Three\n', 'Four\n', 'Five\n', '6\n', 'Seven\n')"
        )

    def test_text(self):
        result = merge(BASE, REWRITTEN, CORRECTED)
        self.assertEqual(
            result.text.splitlines(),
            [
                "intro",
                "<<<<<<< ours",
                "All of it in one line.",
                "=======",
                "One",
                "2",
                "Three",
                "Four",
                "Five",
                "6",
                "Seven",
                ">>>>>>> theirs",
                "outro",
            ],
        )

    def test_two_sections_are_two_conflicts(self):
        result = merge(BASE + BASE, REWRITTEN + REWRITTEN, CORRECTED + CORRECTED)
        self.assertEqual(len(result.conflicts), 2)
        self.assertEqual(result.conflicts[0], result.conflicts[1])


class CommandLineTest(unittest.TestCase):
    def test_favor(self):
        with tempfile.TemporaryDirectory() as folder:
            paths = []
            for name, content in [("base", BASE), ("ours", REWRITTEN), ("theirs", CORRECTED)]:
                paths.append(os.path.join(folder, name))
                with open(paths[-1], "w", encoding="utf-8", newline="") as file:
                    file.write(content)
            out = io.StringIO()
            self.assertEqual(main(["--favor", "ours", *paths], out), 0)
        self.assertEqual(out.getvalue(), REWRITTEN)
