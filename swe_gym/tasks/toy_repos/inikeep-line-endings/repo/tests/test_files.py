import io
import os
import tempfile
import unittest

import inikeep
from inikeep.__main__ import main


class FilesTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "app.ini")
        with open(self.path, "wb") as file:
            file.write("[user]\nname = Zoë\n".encode())

    def test_load_and_save(self):
        document = inikeep.load(self.path)
        self.assertEqual(document.get("user", "name"), "Zoë")
        document.set("user", "name", "Jürgen")
        document.save(self.path)
        with open(self.path, "rb") as file:
            self.assertEqual(file.read(), "[user]\nname = Jürgen\n".encode())

    def test_command_line(self):
        out = io.StringIO()
        self.assertEqual(main([self.path, "set", "user.mail", "zoe@example.org"], out), 0)
        self.assertEqual(main([self.path, "get", "user.mail"], out), 0)
        self.assertEqual(out.getvalue(), "zoe@example.org\n")
        self.assertEqual(main([self.path, "get", "user.phone"], out), 1)
