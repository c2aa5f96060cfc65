import unittest

from tabulo import Column, Table
from tabulo.__main__ import draw


def lines(*text):
    return "\n".join(text)


class RenderTest(unittest.TestCase):
    def test_light_border(self):
        table = Table(["name", "size"])
        table.add("apple", 3)
        table.add("fig", 12)
        self.assertEqual(
            table.render(),
            lines(
                "┌───────┬──────┐",
                "│ name  │ size │",
                "├───────┼──────┤",
                "│ apple │    3 │",
                "│ fig   │   12 │",
                "└───────┴──────┘",
            ),
        )

    def test_no_border(self):
        table = Table(["name", "size"], border="none")
        table.add("apple", 3)
        self.assertEqual(table.render(), lines("name   size", "apple     3"))

    def test_ascii_border_and_center(self):
        table = Table([Column("name", align="center")], border="ascii")
        table.add("pomegranate")
        table.add("fig")
        self.assertEqual(
            table.render(),
            lines(
                "+-------------+",
                "|    name     |",
                "+-------------+",
                "| pomegranate |",
                "|     fig     |",
                "+-------------+",
            ),
        )

    def test_format_and_missing_value(self):
        table = Table([Column("price", format="{:.2f} €")], border="none")
        table.add(3.5)
        table.add(None)
        self.assertEqual(table.render(), lines(" price", "3.50 €", ""))

    def test_truncation(self):
        table = Table([Column("note", max_width=8)], border="none")
        table.add("a long story")
        table.add("short")
        self.assertEqual(table.render(), lines("note", "a long …", "short"))


class TableTest(unittest.TestCase):
    def test_row_of_the_wrong_length(self):
        with self.assertRaises(ValueError):
            Table(["a", "b"]).add(1)

    def test_unknown_alignment(self):
        with self.assertRaises(ValueError):
            Column("a", align="middle")

    def test_tsv(self):
        self.assertEqual(draw(["a\tb\n", "1\n"], "ascii").splitlines()[3], "| 1 |   |")
