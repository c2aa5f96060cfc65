import unittest

from threeway import Conflict, merge


def text(*lines):
    return "".join(line + "\n" for line in lines)


BASE = text("a", "b", "c", "d", "e", "f")


class CleanMergeTest(unittest.TestCase):
    def test_only_one_side_has_changed(self):
        other = text("a", "B", "c", "d", "e", "f", "g")
        self.assertEqual(merge(BASE, other, BASE).text, other)
        self.assertEqual(merge(BASE, BASE, other).text, other)

    def test_changes_in_different_places(self):
        ours = text("A", "b", "c", "d", "e", "f")
        theirs = text("a", "b", "c", "e", "f", "g")
        self.assertEqual(merge(BASE, ours, theirs), (text("A", "b", "c", "e", "f", "g"), []))

    def test_same_change_on_both_sides(self):
        both = text("a", "b", "X", "d", "e", "f")
        self.assertEqual(merge(BASE, both, both), (both, []))

    def test_insertions(self):
        ours = text("first", "a", "b", "c", "d", "e", "f")
        theirs = text("a", "b", "c", "d", "e", "f", "last")
        self.assertEqual(merge(BASE, ours, theirs).text, text("first", "a", "b", "c", "d", "e", "f", "last"))

    def test_no_newline_at_the_end(self):
        self.assertEqual(merge("a\nb", "A\nb", "a\nb").text, "A\nb")


class ConflictTest(unittest.TestCase):
    ours = text("a", "b", "C", "d", "e", "f")
    theirs = text("a", "b", "3", "d", "e", "f")

    def test_markers(self):
        result = merge(BASE, self.ours, self.theirs)
        self.assertEqual(
            result.text, text("a", "b", "<<<<<<< ours", "C", "=======", "3", ">>>>>>> theirs", "d", "e", "f")
        )
        self.assertEqual(result.conflicts, [Conflict(("C\n",), ("c\n",), ("3\n",))])

    def test_base_and_labels(self):
        result = merge(BASE, self.ours, self.theirs, labels=("mine", "old", "yours"), show_base=True)
        self.assertEqual(
            result.text.splitlines()[2:9],
            ["<<<<<<< mine", "C", "||||||| old", "c", "=======", "3", ">>>>>>> yours"],
        )

    def test_favor(self):
        self.assertEqual(merge(BASE, self.ours, self.theirs, favor="ours"), (self.ours, []))
        self.assertEqual(merge(BASE, self.ours, self.theirs, favor="theirs"), (self.theirs, []))
        with self.assertRaises(ValueError):
            merge(BASE, self.ours, self.theirs, favor="mine")

    def test_overlap(self):
        ours = text("a", "X", "d", "e", "f")
        theirs = text("a", "b", "Y", "e", "f")
        result = merge(BASE, ours, theirs)
        self.assertEqual(
            result.conflicts, [Conflict(("X\n", "d\n"), ("b\n", "c\n", "d\n"), ("b\n", "Y\n"))]
        )

    def test_one_correction_in_a_rewritten_part(self):
        ours = text("a", "X", "f")
        theirs = text("a", "b", "c", "d", "E", "f")
        self.assertEqual(merge(BASE, ours, theirs, favor="ours").text, ours)

    def test_missing_newline_before_a_marker(self):
        result = merge("a", "b", "c")
        self.assertEqual(result.text, text("<<<<<<< ours", "b", "=======", "c", ">>>>>>> theirs"))
