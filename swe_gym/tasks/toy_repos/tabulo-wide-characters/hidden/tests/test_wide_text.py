import unittest

from tabulo import Column, Table

U_UMLAUT = "u\u0308"  # decomposed: the letter and a combining diaeresis
E_ACUTE = "e\u0301"


def lines(*text):
    return "\n".join(text)


class WideTextTest(unittest.TestCase):
    def check(self, table, *expected):
        rendered = table.render()
        self.assertIs(type(rendered), str)
        self.assertEqual(rendered, lines(*expected))

    def test_table_of_the_report(self):
        table = Table(["city", "platform"])
        table.add("東京", 7)
        table.add("Z" + U_UMLAUT + "rich", 12)
        table.add("Oslo", 3)
        self.check(
            table,
            "┌────────┬──────────┐",
            "│ city   │ platform │",
            "├────────┼──────────┤",
            "│ 東京   │        7 │",
            "│ Z" + U_UMLAUT + "rich │       12 │",
            "│ Oslo   │        3 │",
            "└────────┴──────────┘",
        )

    def test_wide_text_sets_the_width_of_the_column(self):
        table = Table(["都市", "no"], border="ascii")
        table.add("名古屋", 1)
        table.add("Kyoto", 2)
        self.check(
            table,
            "+--------+----+",
            "| 都市   | no |",
            "+--------+----+",
            "| 名古屋 |  1 |",
            "| Kyoto  |  2 |",
            "+--------+----+",
        )
        self.assertEqual(repr(table.widths()), "[6, 2]")

    def test_right_alignment(self):
        table = Table([Column("name", align="right")], border="ascii")
        table.add("大阪")
        table.add("caf" + E_ACUTE)
        table.add("Paris")
        self.check(
            table,
            "+-------+",
            "|  name |",
            "+-------+",
            "|  大阪 |",
            "|  caf" + E_ACUTE + " |",
            "| Paris |",
            "+-------+",
        )

    def test_center_alignment(self):
        table = Table([Column("station", align="center")], border="ascii")
        table.add("京都")
        table.add("n" + E_ACUTE + "e")
        self.check(
            table,
            "+---------+",
            "| station |",
            "+---------+",
            "|  京都   |",
            "|   n" + E_ACUTE + "e   |",
            "+---------+",
        )

    def test_fullwidth_forms(self):
        table = Table(["code"], border="none")
        table.add("ＡＢ１")
        self.assertEqual(repr(table.widths()), "[6]")


class WideTruncationTest(unittest.TestCase):
    def cell(self, text, max_width):
        text = Column("x", max_width=max_width).cell(text)
        self.assertIs(type(text), str)
        return text

    def test_wide_characters(self):
        self.assertEqual(self.cell("東京都庁前", 6), "東京…")
        self.assertEqual(self.cell("東京都庁前", 7), "東京都…")
        self.assertEqual(self.cell("東京都庁前", 9), "東京都庁…")
        self.assertEqual(self.cell("東京都庁前", 10), "東京都庁前")

    def test_text_that_fits_is_left_alone(self):
        self.assertEqual(self.cell("Z" + U_UMLAUT + "rich", 6), "Z" + U_UMLAUT + "rich")

    def test_marks_stay_with_their_letter(self):
        text = E_ACUTE * 6
        self.assertEqual(self.cell(text, 4), E_ACUTE * 3 + "…")
        self.assertEqual(self.cell(text, 6), text)

    def test_mixed_text(self):
        self.assertEqual(self.cell("JR東日本線", 5), "JR東…")
        self.assertEqual(self.cell("JR東日本線", 6), "JR東…")

    def test_one_cell(self):
        self.assertEqual(self.cell("東京", 1), "…")
        self.assertEqual(self.cell("ab", 1), "…")

    def test_plain_text_as_before(self):
        self.assertEqual(self.cell("a long story", 8), "a long …")


class WideTableTest(unittest.TestCase):
    def test_cut_cells_line_up(self):
        table = Table([Column("station", max_width=8), "line"], border="ascii")
        table.add("新宿三丁目駅", "丸")
        table.add("Otemachi", "T")
        rendered = table.render()
        self.assertIs(type(rendered), str)
        self.assertEqual(
            rendered,
            lines(
                "+----------+------+",
                "| station  | line |",
                "+----------+------+",
                "| 新宿三…  | 丸   |",
                "| Otemachi | T    |",
                "+----------+------+",
            ),
        )
