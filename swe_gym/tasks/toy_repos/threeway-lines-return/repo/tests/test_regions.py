import unittest

from threeway.changes import Change, apply_changes, find_changes
from threeway.regions import find_regions


class ChangesTest(unittest.TestCase):
    def test_find(self):
        self.assertEqual(
            find_changes(["a", "b", "c", "d"], ["a", "B", "c", "d", "e"]),
            [Change(1, 2, ("B",)), Change(4, 4, ("e",))],
        )

    def test_apply(self):
        self.assertEqual(apply_changes("abcdef", 1, 5, [Change(2, 3, ("C", "C"))]), ["b", "C", "C", "d", "e"])


class RegionsTest(unittest.TestCase):
    def regions(self, ours, theirs):
        found = find_regions([Change(*span, ()) for span in ours], [Change(*span, ()) for span in theirs])
        return [(region.start, region.end, len(region.ours), len(region.theirs)) for region in found]

    def test_apart(self):
        self.assertEqual(self.regions([(0, 1)], [(2, 3)]), [(0, 1, 1, 0), (2, 3, 0, 1)])

    def test_touching(self):
        self.assertEqual(self.regions([(0, 2)], [(2, 3)]), [(0, 3, 1, 1)])

    def test_chain(self):
        self.assertEqual(self.regions([(0, 3), (5, 8)], [(2, 6)]), [(0, 8, 2, 1)])
