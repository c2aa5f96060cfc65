import unittest

from topmake import CycleError, UnknownTarget, parse, plan, run

DIAMOND = """\
all: app docs
app: lib
\tcompile app
docs: lib
\trender docs
lib:
\tcompile lib
\ttest lib
"""


class PlanTest(unittest.TestCase):
    def test_order(self):
        self.assertEqual(plan(parse(DIAMOND), ["all"]), ["lib", "app", "docs", "all"])

    def test_first_target_is_the_goal(self):
        self.assertEqual(plan(parse("b: a\na:\n")), ["a", "b"])

    def test_several_goals(self):
        self.assertEqual(plan(parse(DIAMOND), ["docs", "app"]), ["lib", "docs", "app"])

    def test_fresh_targets_are_left_out(self):
        fresh = {"lib", "app"}
        self.assertEqual(plan(parse(DIAMOND), ["all"], fresh.__contains__), ["docs", "all"])

    def test_what_needs_something_stale_is_stale(self):
        self.assertEqual(plan(parse("c: b\nb: a\na:\n"), ["c"], {"b", "c"}.__contains__), ["a", "b", "c"])


class RunTest(unittest.TestCase):
    def test_commands(self):
        commands = []

        def execute(command):
            commands.append(command)
            return True

        self.assertEqual(run(parse(DIAMOND), ["app"], execute), ["lib", "app"])
        self.assertEqual(commands, ["compile lib", "test lib", "compile app"])

    def test_stops_at_the_first_failure(self):
        self.assertEqual(run(parse(DIAMOND), ["all"], lambda command: "app" not in command), ["lib"])


class ErrorTest(unittest.TestCase):
    def test_cycle(self):
        with self.assertRaises(CycleError) as caught:
            plan(parse("north: east\neast: south\nsouth: east\n"), ["north"])
        self.assertEqual(str(caught.exception), "east -> south -> east")

    def test_unknown_target(self):
        with self.assertRaises(UnknownTarget) as caught:
            plan(parse("house: roof\nroof: tiles\n"), ["house"])
        self.assertIn("nobody knows how to make 'tiles'", str(caught.exception))
