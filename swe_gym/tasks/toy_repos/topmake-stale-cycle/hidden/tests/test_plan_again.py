import os
import unittest

from topmake import CycleError, UnknownTarget, parse, plan, run

EXAMPLE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "examples", "Buildfile")


class PlanAgainTest(unittest.TestCase):
    """Names differ from test to test, so that no test depends on what another has left behind."""

    def check(self, text, goals, expected):
        order = plan(parse(text), goals)
        self.assertIs(type(order), list)
        self.assertEqual(repr(order), repr(expected))

    def test_after_an_unknown_target(self):
        with self.assertRaises(UnknownTarget):
            plan(parse("a1: a2\na2: a4\na3:\n"), ["a1"])
        self.check("a1: a2\na2: a3\na3:\n", ["a1"], ["a3", "a2", "a1"])

    def test_after_a_cycle(self):
        with self.assertRaises(CycleError):
            plan(parse("b1: b2\nb2: b3\nb3: b2\n"), ["b1"])
        self.check("b1: b2\nb2: b3\nb3:\n", ["b1"], ["b3", "b2", "b1"])

    def test_inner_target_after_a_failure(self):
        with self.assertRaises(UnknownTarget):
            plan(parse("c1: c2\nc2: missing\n"), ["c1"])
        self.check("c2:\nc1: c2\n", ["c2", "c1"], ["c2", "c1"])

    def test_many_failures(self):
        for number in range(20):
            with self.assertRaises(UnknownTarget) as caught:
                plan(parse("d1: d2\nd2: gone{}\n".format(number)), ["d1"])
            self.assertEqual(repr(caught.exception.needed_by), "['d1', 'd2']")
        self.check("d1: d2\nd2:\n", ["d1"], ["d2", "d1"])

    def test_message_of_an_unknown_target(self):
        for goal in ("e1", "e2"):
            with self.assertRaises(UnknownTarget) as caught:
                plan(parse("{}: nothing\n".format(goal)), [goal])
            self.assertEqual(
                str(caught.exception), "nobody knows how to make 'nothing', needed by {}".format(goal)
            )

    def test_unknown_goal(self):
        with self.assertRaises(UnknownTarget):
            plan(parse("f1: nothing\n"), ["f1"])
        with self.assertRaises(UnknownTarget) as caught:
            plan(parse("f2:\n"), ["f3"])
        self.assertEqual(str(caught.exception), "nobody knows how to make 'f3'")

    def test_cycle_after_a_cycle(self):
        text = "g1: g2\ng2: g3\ng3: g2\n"
        for goal in ("g1", "g3", "g1"):
            with self.assertRaises(CycleError) as caught:
                plan(parse(text), [goal])
            expected = ["g3", "g2", "g3"] if goal == "g3" else ["g2", "g3", "g2"]
            self.assertEqual(repr(caught.exception.cycle), repr(expected))

    def test_run_after_a_failure(self):
        with self.assertRaises(UnknownTarget):
            run(parse("h1: nothing\n"), ["h1"], lambda command: True)
        commands = []
        made = run(parse("h1:\n\tbuild\n"), ["h1"], lambda command: commands.append(command) or True)
        self.assertEqual(repr((made, commands)), "(['h1'], ['build'])")

    def test_diamonds_are_no_cycles(self):
        self.check("i1: i2 i3\ni2: i4\ni3: i4 i2\ni4:\n", ["i1"], ["i4", "i2", "i3", "i1"])

    def test_target_that_needs_itself(self):
        with self.assertRaises(CycleError) as caught:
            plan(parse("j1: j1\n"), ["j1"])
        self.assertEqual(caught.exception.cycle[-2:], ["j1", "j1"])


class ExampleTest(unittest.TestCase):
    def read(self):
        with open(EXAMPLE, "rb") as file:
            return file.read()

    def test_plan(self):
        order = plan(parse(self.read().decode("ascii")), ["all"])
        self.assertEqual(repr(order), "['lib', 'app', 'manual', 'index', 'docs', 'all']")

    def test_commands(self):
        commands = []
        run(parse(self.read().decode("ascii")), ["all"], lambda command: commands.append(command) or True)
        self.assertEqual(
            commands,
            [
                "compile lib",
                "compile app 2.1",
                "strip app",
                "render manual",
                "collect words",
                "render docs 2.1",
            ],
        )

    def test_only_the_two_mistakes_were_corrected(self):
        lines = self.read().split(b"\n")
        self.assertEqual(lines[9], b"docs: lib manual index")
        self.assertEqual(lines[13], b"\trender manual  # slow")
        del lines[13], lines[9]
        self.assertEqual(
            lines,
            [
                b"# How the handbook is made. Recipes begin with a tab.",
                b"VERSION = 2.1",
                b"",
                b"all: app docs",
                b"",
                b"app: lib",
                b"\tcompile app $(VERSION)",
                b"\tstrip app",
                b"",
                b"\trender docs $(VERSION)",
                b"",
                b"manual: lib",
                b"",
                b"index: manual",
                b"\tcollect words",
                b"",
                b"lib:",
                b"\tcompile lib",
                b"",
            ],
        )
