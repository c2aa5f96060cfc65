import unittest

from topmake import BuildfileError, Rule, parse


class ParserTest(unittest.TestCase):
    def test_rules(self):
        rules = parse("app: lib  # the program\n\tcompile app\n\n\tstrip app\nlib:\n").rules
        self.assertEqual(rules["app"], Rule("app", ("lib",), ("compile app", "strip app")))
        self.assertEqual(rules["lib"], Rule("lib", (), ()))

    def test_variables(self):
        rules = parse("V = 1.4\nNAME = app-$(V)\n$(NAME):\n\tpack $(NAME)\n").rules
        self.assertEqual(rules["app-1.4"].recipe, ("pack app-1.4",))

    def test_errors(self):
        for text, message in [
            ("app:\n    compile\n", "line 2: recipes begin with a tab, not with blanks"),
            ("\tcompile\n", "line 1: a recipe without a target"),
            ("app:\napp:\n", "line 2: there are two rules for 'app'"),
            ("app: $(LIB)\n", "line 1: there is no variable 'LIB'"),
            ("nonsense\n", "line 1: expected 'target: needs', 'NAME = value' or a recipe"),
        ]:
            with self.assertRaises(BuildfileError) as caught:
                parse(text)
            self.assertEqual(str(caught.exception), message)
