import io
import unittest

from calcline.__main__ import main


class CommandLineTest(unittest.TestCase):
    def run_main(self, *argv):
        out = io.StringIO()
        status = main(list(argv), out)
        return status, out.getvalue()

    def test_value(self):
        self.assertEqual(self.run_main("1 + 1"), (0, "2\n"))

    def test_leading_minus(self):
        self.assertEqual(self.run_main("-1 + 3"), (0, "2\n"))

    def test_variables(self):
        self.assertEqual(self.run_main("--set", "a=3", "--set", "b=2*2", "a * b"), (0, "12\n"))

    def test_show(self):
        self.assertEqual(self.run_main("--show", "(1*2)+3"), (0, "1 * 2 + 3\n"))

    def test_error(self):
        self.assertEqual(self.run_main("1 +"), (1, "error: the expression ends too early\n"))
