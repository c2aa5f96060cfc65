import io
import os
import tempfile
import unittest

import inikeep
from inikeep.__main__ import main

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
WINDOWS = b"; settings\r\n[window]\r\nwidth = 800\r\nheight = 600\r\n"


class FileTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "app.ini")

    def changed(self, content, *changes):
        """The bytes of a file after it was loaded, changed and saved."""
        with open(self.path, "wb") as file:
            file.write(content)
        document = inikeep.load(self.path)
        for change in changes:
            document.set(*change)
        document.save(self.path)
        with open(self.path, "rb") as file:
            return file.read()

    def test_file_of_the_report(self):
        self.assertEqual(
            self.changed(WINDOWS, ("window", "width", "1024")),
            b"; settings\r\n[window]\r\nwidth = 1024\r\nheight = 600\r\n",
        )

    def test_unchanged_files(self):
        for content in (
            WINDOWS,
            WINDOWS[:-2],
            b"[a]\nx = 1\n",
            b"[a]\nx = 1",
            b"[a]\r\nx = 1\n\r\ny = 2\r\n; end",
            b"\r\n\r\n",
            b"",
        ):
            self.assertEqual(self.changed(content), content)

    def test_last_line_without_an_ending_is_changed(self):
        self.assertEqual(self.changed(b"[a]\r\nx = 1", ("a", "x", "2")), b"[a]\r\nx = 2")
        self.assertEqual(self.changed(b"[a]\nx = 1", ("a", "x", "2")), b"[a]\nx = 2")

    def test_mixed_endings(self):
        self.assertEqual(
            self.changed(b"[a]\nx = 1\r\ny = 2\n", ("a", "x", "7"), ("a", "y", "8")), b"[a]\nx = 7\r\ny = 8\n"
        )

    def test_new_option(self):
        self.assertEqual(self.changed(WINDOWS, ("window", "depth", "24")), WINDOWS + b"depth = 24\r\n")
        self.assertEqual(
            self.changed(b"[a]\r\nx = 1\r\n\r\n[b]\r\n", ("a", "y", "2")), b"[a]\r\nx = 1\r\ny = 2\r\n\r\n[b]\r\n"
        )

    def test_new_option_after_a_line_without_an_ending(self):
        self.assertEqual(self.changed(b"[a]\r\nx = 1", ("a", "y", "2")), b"[a]\r\nx = 1\r\ny = 2\r\n")
        self.assertEqual(self.changed(b"[a]", ("a", "y", "2")), b"[a]\ny = 2\n")

    def test_new_section(self):
        self.assertEqual(self.changed(WINDOWS, ("fonts", "size", "12")), WINDOWS + b"\r\n[fonts]\r\nsize = 12\r\n")
        self.assertEqual(self.changed(b"; none\r\n[a]", ("b", "x", "1")), b"; none\r\n[a]\r\n\r\n[b]\r\nx = 1\r\n")
        self.assertEqual(self.changed(b"", ("a", "x", "1")), b"[a]\nx = 1\n")

    def test_first_line_decides(self):
        self.assertEqual(self.changed(b"[a]\nx = 1\r\n", ("a", "y", "2")), b"[a]\nx = 1\r\ny = 2\n")
        self.assertEqual(self.changed(b"[a]\r\nx = 1\n", ("a", "y", "2")), b"[a]\r\nx = 1\ny = 2\r\n")

    def test_command_line(self):
        self.changed(WINDOWS)
        out = io.StringIO()
        self.assertEqual(main([self.path, "set", "window.width", "640"], out), 0)
        self.assertEqual(main([self.path, "unset", "window.height"], out), 0)
        with open(self.path, "rb") as file:
            self.assertEqual(file.read(), b"; settings\r\n[window]\r\nwidth = 640\r\n")

    def test_values_hold_no_ending(self):
        with open(self.path, "wb") as file:
            file.write(WINDOWS)
        self.assertEqual(repr(inikeep.load(self.path).options("window")), "{'width': '800', 'height': '600'}")


class TextTest(unittest.TestCase):
    def check(self, document, expected):
        self.assertEqual(repr(document.text()), repr(expected))

    def test_round_trip(self):
        for text in ("[a]\r\nx = 1\r\n", "[a]\nx = 1", "; only this", "\n", ""):
            self.check(inikeep.parse(text), text)

    def test_change(self):
        document = inikeep.parse("[a]\r\nx = 1")
        document.set("a", "x", "2")
        self.check(document, "[a]\r\nx = 2")
        document.set("a", "y", "3")
        self.check(document, "[a]\r\nx = 2\r\ny = 3\r\n")

    def test_values(self):
        document = inikeep.parse("[a]\r\nx = 1\r\ny = 2")
        self.assertEqual(repr(document.options("a")), "{'x': '1', 'y': '2'}")

    def test_remove(self):
        document = inikeep.parse("[a]\r\nx = 1\r\ny = 2\r\n")
        document.remove("a", "x")
        self.check(document, "[a]\r\ny = 2\r\n")


class SourcesTest(unittest.TestCase):
    def test_sources_still_have_windows_endings(self):
        for name in ("__init__.py", "document.py", "errors.py", "files.py", "lines.py", "__main__.py"):
            with open(os.path.join(ROOT, "inikeep", name), "rb") as file:
                content = file.read()
            self.assertEqual(content.count(b"\n"), content.count(b"\r\n"), name)
