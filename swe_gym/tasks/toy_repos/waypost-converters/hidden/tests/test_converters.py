import unittest
from datetime import date

from waypost import BuildError, MethodNotAllowed, NotFound, PatternError, Router


def show():
    pass


def other():
    pass


def date_converter():
    """Made on demand, so that a missing module fails single tests and not the import of this file."""
    from waypost.converters import Converter

    class DateConverter(Converter):
        regex = r"\d{4}-\d{2}-\d{2}"

        def to_python(self, text):
            return date.fromisoformat(text)

        def to_url(self, value):
            return value.isoformat()

    return DateConverter()


class ConverterCase(unittest.TestCase):
    def params(self, pattern, path, **options):
        """The parameters as text, which tells types apart; None where the path does not match."""
        router = Router(**options)
        router.add("GET", pattern, show)
        try:
            return repr(router.match("GET", path).params)
        except NotFound:
            return None

    def build(self, pattern, converters=None, **values):
        router = Router(converters=converters) if converters else Router()
        router.add("GET", pattern, show, name="it")
        return str.__str__(router.url_for("it", **values))


class MatchTest(ConverterCase):
    def test_int(self):
        self.assertEqual(self.params("/invoices/<int:number>", "/invoices/12"), "{'number': 12}")
        self.assertEqual(self.params("/invoices/<int:number>", "/invoices/007"), "{'number': 7}")

    def test_int_takes_only_digits(self):
        for text in ("12a", "-3", "+3", "1.5", "1_000", "", "1/2"):
            self.assertIsNone(self.params("/invoices/<int:number>", "/invoices/" + text), text)

    def test_str_is_the_default(self):
        self.assertEqual(self.params("/users/<str:name>", "/users/ada%20l"), "{'name': 'ada l'}")
        self.assertEqual(self.params("/users/<name>", "/users/42"), "{'name': '42'}")
        self.assertIsNone(self.params("/users/<str:name>", "/users/a/b"))

    def test_path(self):
        self.assertEqual(self.params("/files/<path:rest>", "/files/a/b%20c/d.txt"), "{'rest': 'a/b c/d.txt'}")
        self.assertEqual(self.params("/files/<path:rest>", "/files/a"), "{'rest': 'a'}")
        self.assertIsNone(self.params("/files/<path:rest>", "/files/"))

    def test_path_in_the_middle(self):
        self.assertEqual(
            self.params("/<path:folder>/raw/<int:line>", "/src/raw/x/raw/7"), "{'folder': 'src/raw/x', 'line': 7}"
        )

    def test_next_route_is_tried(self):
        router = Router()
        router.add("GET", "/items/<int:number>", show)
        router.add("GET", "/items/<slug>", other)
        self.assertIs(router.match("GET", "/items/5").handler, show)
        self.assertIs(router.match("GET", "/items/five").handler, other)

    def test_type_counts_for_method_not_allowed(self):
        router = Router()
        router.add("PUT", "/items/<int:number>", show)
        with self.assertRaises(MethodNotAllowed):
            router.match("GET", "/items/5")
        with self.assertRaises(NotFound):
            router.match("GET", "/items/five")


class BuildTest(ConverterCase):
    def test_int(self):
        self.assertEqual(self.build("/invoices/<int:number>", number=12), "/invoices/12")

    def test_path_keeps_slashes(self):
        self.assertEqual(self.build("/files/<path:rest>", rest="a/b c/ü"), "/files/a/b%20c/%C3%BC")

    def test_str(self):
        self.assertEqual(self.build("/users/<str:name>", name="ada l/b"), "/users/ada%20l%2Fb")

    def test_values_that_do_not_fit(self):
        for pattern, value in [
            ("/<int:x>", "abc"),
            ("/<int:x>", -1),
            ("/<int:x>", ""),
            ("/<x>", ""),
            ("/<str:x>", ""),
            ("/<path:x>", ""),
        ]:
            with self.assertRaises(BuildError, msg=(pattern, value)):
                self.build(pattern, x=value)

    def test_missing_value(self):
        with self.assertRaises(BuildError):
            self.build("/<int:x>/<int:y>", x=1)


class OwnConverterTest(ConverterCase):
    def test_match(self):
        converters = {"date": date_converter()}
        self.assertEqual(
            self.params("/log/<date:day>", "/log/2024-05-01", converters=converters),
            "{'day': datetime.date(2024, 5, 1)}",
        )

    def test_value_error_is_no_match(self):
        self.assertIsNone(self.params("/log/<date:day>", "/log/2024-13-01", converters={"date": date_converter()}))

    def test_build(self):
        converters = {"date": date_converter()}
        self.assertEqual(self.build("/log/<date:day>", converters, day=date(2024, 5, 1)), "/log/2024-05-01")

    def test_built_in_ones_stay(self):
        self.assertEqual(
            self.params("/<date:day>/<int:n>", "/2024-05-01/3", converters={"date": date_converter()}),
            "{'day': datetime.date(2024, 5, 1), 'n': 3}",
        )

    def test_built_in_ones_can_be_replaced(self):
        from waypost.converters import Converter

        class Signed(Converter):
            regex = r"-?\d+"

            def to_python(self, text):
                return int(text)

        self.assertEqual(self.params("/<int:n>", "/-3", converters={"int": Signed()}), "{'n': -3}")
        self.assertEqual(self.build("/<int:n>", {"int": Signed()}, n=-3), "/-3")
        self.assertIsNone(self.params("/<int:n>", "/-3"))

    def test_default_converter_can_be_replaced(self):
        from waypost.converters import Converter

        class Lower(Converter):
            regex = r"[a-z]+"

        self.assertEqual(self.params("/<name>", "/ada", converters={"str": Lower()}), "{'name': 'ada'}")

    def test_plain_converter(self):
        from waypost.converters import Converter

        converters = {"word": Converter()}
        self.assertEqual(self.params("/<word:w>", "/a%20b", converters=converters), "{'w': 'a b'}")
        self.assertEqual(self.build("/<word:w>", converters, w="a b"), "/a%20b")

    def test_unknown_type(self):
        with self.assertRaisesRegex(PatternError, "'uuid'"):
            Router().add("GET", "/<uuid:key>", show)
        with self.assertRaises(PatternError):
            Router().add("GET", "/<date:day>", show)

    def test_bad_placeholders(self):
        for path in ("/<int:>", "/<:x>", "/<int:a b>", "/<int:a>/<b>/<str:a>"):
            with self.assertRaises(PatternError, msg=path):
                Router().add("GET", path, show)


class MountTest(ConverterCase):
    def test_mounted_router_brings_its_converters(self):
        inner = Router(converters={"date": date_converter()})
        inner.add("GET", "/<date:day>", show, name="day")
        outer = Router()
        outer.mount("/log", inner)
        self.assertEqual(repr(outer.match("GET", "/log/2024-05-01").params), "{'day': datetime.date(2024, 5, 1)}")
        self.assertEqual(str.__str__(outer.url_for("day", day=date(2024, 5, 1))), "/log/2024-05-01")

    def test_outer_converters_do_not_apply_inside(self):
        from waypost.converters import Converter

        class Signed(Converter):
            regex = r"-?\d+"

            def to_python(self, text):
                return int(text)

        inner = Router()
        inner.add("GET", "/<int:n>", show)
        outer = Router(converters={"int": Signed()})
        outer.mount("/inner", inner)
        self.assertEqual(repr(outer.match("GET", "/inner/3").params), "{'n': 3}")
        with self.assertRaises(NotFound):
            outer.match("GET", "/inner/-3")

    def test_same_type_name_in_two_routers(self):
        inner = Router(converters={"key": date_converter()})
        inner.add("GET", "/<key:k>", show)
        outer = Router()
        outer.add("GET", "/<int:k>", other)
        outer.mount("/by-day", inner)
        self.assertEqual(repr(outer.match("GET", "/by-day/2024-05-01").params), "{'k': datetime.date(2024, 5, 1)}")
        self.assertEqual(repr(outer.match("GET", "/77").params), "{'k': 77}")
