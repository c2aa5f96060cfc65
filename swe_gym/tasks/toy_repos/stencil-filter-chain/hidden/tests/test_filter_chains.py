import unittest

from stencil import Environment, render


class FilterChainTest(unittest.TestCase):
    def check(self, template, variables, expected):
        rendered = render(template, variables)
        self.assertIs(type(rendered), str)
        self.assertEqual(rendered, expected)

    def test_two_filters(self):
        self.check("{{ name | trim | upper }}", {"name": "  ada  "}, "ADA")
        self.check("{{ name | upper | trim }}", {"name": "  ada  "}, "ADA")

    def test_order(self):
        self.check("{{ name | upper | lower | title }}", {"name": "aDA"}, "Ada")
        self.check("{{ text | wrap(' ', ' ') | cut(4) | trim }}", {"text": "lovelace"}, "lo…")
        self.check("{{ text | trim | cut(4) | wrap('[', ']') }}", {"text": " lovelace "}, "[lov…]")

    def test_each_filter_has_its_own_arguments(self):
        self.check(
            "{{ items | join(', ') | cut(12) }}", {"items": ["tea", "pot", "cup", "spoon"]}, "tea, pot, c…"
        )
        self.check("{{ note | default('none') | wrap('<', '>') | safe }}", {}, "<none>")

    def test_same_filter_twice(self):
        self.check("{{ a | wrap('(', ')') | wrap('[', ']') }}", {"a": 1}, "[(1)]")
        self.check("{{ a | default(b) | default('c') }}", {}, "c")
        self.check("{{ a | default(b) | default('c') }}", {"b": "second"}, "second")

    def test_arguments_are_looked_up_when_rendering(self):
        template = Environment().template("{{ a | default(b) | wrap(c, c) }}")
        self.assertEqual(repr(template.render({"b": "x", "c": "-"})), "'-x-'")
        self.assertEqual(repr(template.render({"a": "y", "c": "+"})), "'+y+'")

    def test_each_filter_runs_once(self):
        calls = []

        def note(value, name):
            calls.append(name)
            return "{}{}".format(value, name)

        template = Environment({"note": note}).template("{{ v | note('a') | note('b') | note('c') }}")
        self.assertEqual(repr(template.render({"v": ">"})), "'&gt;abc'")
        self.assertEqual(repr(calls), "['a', 'b', 'c']")

    def test_escaping_comes_last(self):
        self.check("{{ text | upper | wrap('<b>', '</b>') }}", {"text": "x & y"}, "&lt;b&gt;X &amp; Y&lt;/b&gt;")

    def test_safe_after_another_filter(self):
        self.check("{{ text | upper | safe }}", {"text": "<b>x</b>"}, "<B>X</B>")

    def test_in_a_loop(self):
        self.check(
            "{% for name in names | default('') %}{{ name | trim | title }};{% end %}",
            {"names": [" ada ", " grace "]},
            "Ada;Grace;",
        )

    def test_in_a_condition(self):
        self.check("{% if name | trim | lower %}yes{% else %}no{% end %}", {"name": "  "}, "no")

    def test_no_and_one_filter(self):
        self.check("{{ a }}{{ b | upper }}", {"a": "x", "b": "y"}, "xY")
