import io
import json
import os
import tempfile
import unittest
from datetime import date

from jot.cli import main
from jot.todolist import TodoList


class SuccessorTest(unittest.TestCase):
    def setUp(self):
        self.todos = TodoList()
        self.first = self.todos.add(
            "plants", due=date(2024, 5, 3), every="week", tags=["home"], steps=["balcony", "kitchen"]
        )
        self.todos.tick(1, 1)
        self.todos.tick(1, 2)
        self.second = self.todos.finish(1, date(2024, 5, 3))

    def test_finished_todo_keeps_its_ticks(self):
        self.assertEqual(repr([step.ticked for step in self.first.steps]), "[True, True]")

    def test_next_todo_starts_open(self):
        self.assertEqual(repr([step.ticked for step in self.second.steps]), "[False, False]")
        self.assertEqual(repr([step.text for step in self.second.steps]), "['balcony', 'kitchen']")

    def test_histories_are_separate(self):
        self.assertEqual(repr(self.first.history), "['created', 'done on 2024-05-03']")
        self.assertEqual(repr(self.second.history), "['repeats #1']")

    def test_ticking_the_next_todo_leaves_the_first_alone(self):
        self.first.steps[0].ticked = False
        self.todos.tick(2, 1)
        self.assertEqual(repr([step.ticked for step in self.first.steps]), "[False, True]")
        self.assertEqual(repr([step.ticked for step in self.second.steps]), "[True, False]")

    def test_tags_are_inherited_but_not_shared(self):
        self.todos.tag(2, "urgent")
        self.assertEqual(repr(self.first.tags), "['home']")
        self.assertEqual(repr(self.second.tags), "['home', 'urgent']")

    def test_chain_of_three(self):
        self.todos.tick(2, 2)
        third = self.todos.finish(2, date(2024, 5, 12))
        self.assertEqual(third.due, date(2024, 5, 17))
        self.assertEqual(repr(third.history), "['repeats #2']")
        self.assertEqual(repr(self.second.history), "['repeats #1', 'done on 2024-05-12']")
        ticks = [[step.ticked for step in todo.steps] for todo in self.todos]
        self.assertEqual(repr(ticks), "[[True, True], [False, True], [False, False]]")

    def test_next_todo_keeps_title_date_and_rhythm(self):
        self.assertEqual(
            (self.second.number, self.second.title, self.second.due, self.second.every, self.second.done),
            (2, "plants", date(2024, 5, 10), "week", False),
        )


class RepeatingOnTheCommandLineTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file = os.path.join(folder.name, "todos.json")
        self.jot("add", "Water", "--due", "2024-05-03", "--every", "week", "--step", "balcony", "--step", "kitchen")
        self.jot("tick", "1", "1")
        self.jot("tick", "1", "2")
        self.jot("done", "1", "--today", "2024-05-03")

    def jot(self, *argv, stdin=""):
        out = io.StringIO()
        self.assertEqual(main(["--file", self.file, *argv], io.StringIO(stdin), out), 0)
        return out.getvalue().splitlines()

    def test_show(self):
        self.assertEqual(
            self.jot("show", "1"),
            [
                "#1 Water (done)",
                "due 2024-05-03, every week",
                "[x] balcony",
                "[x] kitchen",
                "* created",
                "* done on 2024-05-03",
            ],
        )
        self.assertEqual(
            self.jot("show", "2"),
            ["#2 Water", "due 2024-05-10, every week", "[ ] balcony", "[ ] kitchen", "* repeats #1"],
        )

    def test_file(self):
        with open(self.file, encoding="utf-8") as file:
            rows = json.load(file)
        self.assertEqual(repr([step["ticked"] for row in rows for step in row["steps"]]), "[True, True, False, False]")
        self.assertEqual(rows[0]["history"], ["created", "done on 2024-05-03"])

    def test_shell_session(self):
        lines = self.jot("shell", stdin="done 2 --today 2024-05-10\ntag 3 urgent\nshow 2\n")
        self.assertEqual(lines[0], "done #2, next is #3 on 2024-05-17")
        self.assertNotIn("tags urgent", lines)
