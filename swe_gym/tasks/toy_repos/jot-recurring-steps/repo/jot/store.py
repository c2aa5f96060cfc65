"""The list as a JSON file."""

import json
from dataclasses import asdict
from datetime import date

from .model import JotError, Step, Todo
from .todolist import TodoList


def load(path):
    """The list in the file at `path`; an empty one if there is no such file."""
    try:
        with open(path, encoding="utf-8") as file:
            rows = json.load(file)
    except FileNotFoundError:
        return TodoList()
    except ValueError:
        raise JotError("{} is not a jot file".format(path)) from None
    return TodoList(_from_row(row) for row in rows)


def save(todos, path):
    """Write the list to the file at `path`."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump([_to_row(todo) for todo in todos], file, indent=2, ensure_ascii=False)
        file.write("\n")


def _to_row(todo):
    row = asdict(todo)
    row["due"] = todo.due.isoformat() if todo.due else None
    return row


def _from_row(row):
    fields = dict(row)
    fields["due"] = date.fromisoformat(row["due"]) if row["due"] else None
    fields["steps"] = [Step(**step) for step in row["steps"]]
    return Todo(**fields)
