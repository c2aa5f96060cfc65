import unittest

from inikeep import InikeepError, ParseError, parse

TEXT = """\
; settings
[Window]
Width = 800
height:600

[colours]
# none yet
"""


class ReadTest(unittest.TestCase):
    def setUp(self):
        self.document = parse(TEXT)

    def test_values(self):
        self.assertEqual(self.document.get("window", "WIDTH"), "800")
        self.assertEqual(self.document.get("window", "depth", "8"), "8")
        self.assertEqual(self.document.options("Window"), {"width": "800", "height": "600"})

    def test_sections(self):
        self.assertEqual(self.document.sections(), ["window", "colours"])

    def test_nonsense(self):
        with self.assertRaises(ParseError) as caught:
            parse("[window]\nwide\n")
        self.assertEqual(str(caught.exception), "line 2: cannot read 'wide'")


class ChangeTest(unittest.TestCase):
    def setUp(self):
        self.document = parse(TEXT)

    def test_nothing_changes_by_itself(self):
        self.assertEqual(self.document.text(), TEXT)

    def test_change(self):
        self.document.set("window", "width", "1024")
        self.document.set("window", "height", "768")
        self.assertEqual(
            self.document.text(), TEXT.replace("Width = 800", "Width = 1024").replace("height:600", "height:768")
        )

    def test_new_option(self):
        self.document.set("window", "Depth", "24")
        self.document.set("colours", "sky", "blue")
        self.assertEqual(
            self.document.text(),
            TEXT.replace("height:600\n", "height:600\nDepth = 24\n").replace(
                "[colours]\n", "[colours]\nsky = blue\n"
            ),
        )

    def test_new_section(self):
        self.document.set("Fonts", "size", "12")
        self.assertEqual(self.document.text(), TEXT + "\n[Fonts]\nsize = 12\n")

    def test_remove(self):
        self.assertTrue(self.document.remove("window", "height"))
        self.assertFalse(self.document.remove("window", "height"))
        self.assertEqual(self.document.text(), TEXT.replace("height:600\n", ""))

    def test_the_last_one_counts(self):
        document = parse("[a]\nx = 1\nx = 2\n")
        document.set("a", "x", "3")
        self.assertEqual(document.text(), "[a]\nx = 1\nx = 3\n")

    def test_a_value_is_one_line(self):
        with self.assertRaises(InikeepError):
            self.document.set("window", "title", "two\nlines")
