import unittest

from stencil import Environment, TemplateError, render


class PrintTest(unittest.TestCase):
    def test_values(self):
        self.assertEqual(render("{{ a }}, {{ b.c }} and {{ d.1 }}", {"a": 1, "b": {"c": 2}, "d": [0, 3]}), "1, 2 and 3")

    def test_missing_names_print_nothing(self):
        self.assertEqual(render("<{{ a }}{{ b.c.d }}>", {}), "<>")

    def test_escaping(self):
        self.assertEqual(render("{{ a }}", {"a": "<b> & co"}), "&lt;b&gt; &amp; co")
        self.assertEqual(render("{{ a | safe }}", {"a": "<b>"}), "<b>")


class FilterTest(unittest.TestCase):
    def test_one_filter(self):
        self.assertEqual(render("{{ name | trim }}", {"name": "  ada  "}), "ada")
        self.assertEqual(render("{{ name | title }}", {"name": "ada lovelace"}), "Ada Lovelace")

    def test_arguments(self):
        self.assertEqual(render("{{ items | join(', ') }}", {"items": [1, 2]}), "1, 2")
        self.assertEqual(render("{{ text | cut(4) }}", {"text": "lovelace"}), "lov…")
        self.assertEqual(render("{{ a | default(b) }}", {"b": "other"}), "other")

    def test_two_filters(self):
        self.assertEqual(render("{{ name | trim | upper }}", {"name": "  ada  "}), "ADA")

    def test_own_filter(self):
        environment = Environment({"double": lambda value: value * 2})
        self.assertEqual(environment.template("{{ n | double }}").render({"n": 21}), "42")


class TagTest(unittest.TestCase):
    def test_if(self):
        template = "{% if name %}Hello {{ name }}{% else %}Who?{% end %}"
        self.assertEqual(render(template, {"name": "Ada"}), "Hello Ada")
        self.assertEqual(render(template, {}), "Who?")

    def test_for(self):
        template = "{% for item in items %}{{ loop.index }}. {{ item }}\n{% end %}"
        self.assertEqual(render(template, {"items": ["tea", "pot"]}), "1. tea\n2. pot\n")

    def test_nested_loops(self):
        template = "{% for row in rows %}{% for x in row %}{{ x }}{{ loop.index }} {% end %}{{ loop.index }};{% end %}"
        self.assertEqual(render(template, {"rows": ["ab", "c"]}), "a1 b2 1;c1 2;")

    def test_a_template_can_be_used_again(self):
        template = Environment().template("{{ a | lower }}")
        self.assertEqual([template.render({"a": a}) for a in "XY"], ["x", "y"])


class ErrorTest(unittest.TestCase):
    def test_messages(self):
        for template, message in [
            ("\n{{ a | shout }}", "line 2: there is no filter 'shout'"),
            ("{{ a b }}", "line 1: unexpected 'b' in 'a b'"),
            ("{{ a | }}", "line 1: unexpected the end in 'a |'"),
            ("{{ a ? }}", "line 1: cannot read '?'"),
            ("{% while a %}", "line 1: unknown tag 'while a'"),
            ("{% if a %}\n", "line 2: a tag is not closed with {% end %}"),
        ]:
            with self.assertRaises(TemplateError) as caught:
                render(template, {})
            self.assertEqual(str(caught.exception), message)
