import unittest
from datetime import date

from jot.model import JotError
from jot.recurrence import next_date
from jot.todolist import TodoList


class TodoListTest(unittest.TestCase):
    def test_numbers_are_given_in_order(self):
        todos = TodoList()
        self.assertEqual([todos.add("a").number, todos.add("b").number], [1, 2])

    def test_open_todos_are_sorted_by_date(self):
        todos = TodoList()
        todos.add("some day")
        todos.add("later", due=date(2024, 6, 1))
        todos.add("soon", due=date(2024, 5, 1))
        self.assertEqual([todo.title for todo in todos.open()], ["soon", "later", "some day"])

    def test_finish(self):
        todos = TodoList()
        todos.add("once")
        self.assertIsNone(todos.finish(1, date(2024, 5, 1)))
        self.assertEqual(list(todos.open()), [])
        with self.assertRaises(JotError):
            todos.finish(1, date(2024, 5, 1))

    def test_finish_a_repeating_todo(self):
        todos = TodoList()
        todos.add("rent", due=date(2024, 1, 31), every="month")
        following = todos.finish(1, date(2024, 1, 30))
        self.assertEqual((following.number, following.due, following.done), (2, date(2024, 2, 29), False))

    def test_the_next_one_starts_with_open_steps(self):
        todos = TodoList()
        todos.add("plants", due=date(2024, 5, 3), every="week", steps=["balcony", "kitchen"])
        todos.tick(1, 2)
        following = todos.finish(1, date(2024, 5, 3))
        self.assertEqual([step.ticked for step in following.steps], [False, False])

    def test_filter_by_tag(self):
        todos = TodoList()
        todos.add("a", tags=["home"])
        todos.add("b")
        todos.tag(2, "work")
        self.assertEqual([todo.title for todo in todos.open("work")], ["b"])

    def test_unknown_number_and_step(self):
        todos = TodoList()
        todos.add("a", steps=["one"])
        with self.assertRaises(JotError):
            todos.tick(2, 1)
        with self.assertRaises(JotError):
            todos.tick(1, 2)


class NextDateTest(unittest.TestCase):
    def test_dates(self):
        self.assertEqual(next_date(date(2024, 2, 28), "day"), date(2024, 2, 29))
        self.assertEqual(next_date(date(2024, 12, 30), "week"), date(2025, 1, 6))
        self.assertEqual(next_date(date(2024, 12, 15), "month"), date(2025, 1, 15))
