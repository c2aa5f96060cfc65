import unittest

from waypost import Headers


class HeadersTest(unittest.TestCase):
    def test_names_ignore_case(self):
        headers = Headers([("Content-Type", "text/plain")])
        self.assertEqual(headers["content-type"], "text/plain")
        self.assertIn("CONTENT-TYPE", headers)
        with self.assertRaises(KeyError):
            headers["Allow"]

    def test_several_values(self):
        headers = Headers([("Vary", "Accept")])
        headers.add("vary", "Cookie")
        self.assertEqual(headers.all("Vary"), ["Accept", "Cookie"])
        headers.set("VARY", "*")
        self.assertEqual(list(headers), [("VARY", "*")])
