import unittest

from waypost import BuildError, MethodNotAllowed, NotFound, PatternError, Router


def home():
    pass


def show():
    pass


def save():
    pass


class MatchTest(unittest.TestCase):
    def setUp(self):
        self.router = Router()
        self.router.add("GET", "/", home)
        self.router.add("GET", "/users/<name>", show, name="user")
        self.router.add("PUT", "/users/<name>", save)

    def test_plain_path(self):
        self.assertIs(self.router.match("GET", "/").handler, home)

    def test_placeholder(self):
        self.assertEqual(self.router.match("GET", "/users/ada"), (show, {"name": "ada"}))
        self.assertEqual(self.router.match("PUT", "/users/ada%20l%2Fb").params, {"name": "ada l/b"})

    def test_head(self):
        self.assertIs(self.router.match("head", "/").handler, home)

    def test_not_found(self):
        for path in ("/users", "/users/", "/users/a/b", "/nothing"):
            with self.assertRaises(NotFound):
                self.router.match("GET", path)

    def test_method_not_allowed(self):
        with self.assertRaises(MethodNotAllowed) as caught:
            self.router.match("DELETE", "/users/ada")
        self.assertEqual(caught.exception.allowed, ["GET", "PUT"])

    def test_first_route_wins(self):
        self.router.add("GET", "/users/me", home)
        self.assertIs(self.router.match("GET", "/users/me").handler, show)


class BuildTest(unittest.TestCase):
    def setUp(self):
        self.router = Router()
        self.router.add("GET", "/users/<name>/files/<file>", show, name="file")

    def test_values_are_encoded(self):
        self.assertEqual(self.router.url_for("file", name="ada l", file="ü.txt"), "/users/ada%20l/files/%C3%BC.txt")

    def test_wrong_values(self):
        for values in ({}, {"name": "a"}, {"name": "a", "file": "b", "page": 1}):
            with self.assertRaises(BuildError):
                self.router.url_for("file", **values)

    def test_unknown_name(self):
        with self.assertRaises(BuildError):
            self.router.url_for("user")


class SetupTest(unittest.TestCase):
    def test_bad_patterns(self):
        for path in ("users", "/<>", "/<a b>", "/<a>/<a>"):
            with self.assertRaises(PatternError):
                Router().add("GET", path, show)

    def test_decorator(self):
        router = Router()

        @router.route("GET", "/about", name="about")
        def about():
            pass

        self.assertIs(router.match("GET", "/about").handler, about)

    def test_mount(self):
        inner = Router()
        inner.add("GET", "/<page>", show, name="page")
        outer = Router()
        outer.mount("/wiki", inner)
        self.assertEqual(outer.match("GET", "/wiki/Start").params, {"page": "Start"})
        self.assertEqual(outer.url_for("page", page="Start"), "/wiki/Start")

    def test_name_used_twice(self):
        router = Router()
        router.add("GET", "/a", home, name="a")
        with self.assertRaises(PatternError):
            router.add("GET", "/b", home, name="a")
