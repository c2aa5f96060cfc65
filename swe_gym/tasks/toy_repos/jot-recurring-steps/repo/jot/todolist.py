"""The list and what can be done to it."""

from .model import JotError, Step, Todo
from .recurrence import successor


class TodoList:
    """All todos, in the order of their numbers."""

    def __init__(self, todos=()):
        self._todos = {todo.number: todo for todo in todos}

    def __iter__(self):
        return iter(self._todos.values())

    def __getitem__(self, number):
        if number not in self._todos:
            raise JotError("there is no #{}".format(number))
        return self._todos[number]

    def add(self, title, due=None, every=None, tags=(), steps=()):
        """Put a new todo on the list and return it."""
        if every and due is None:
            raise JotError("a repeating todo needs a due date")
        todo = Todo(self._next_number(), title, due, every, tags=list(tags), steps=[Step(text) for text in steps])
        todo.log("created")
        return self._put(todo)

    def tag(self, number, tag):
        """Add a tag, unless the todo has it already."""
        todo = self[number]
        if tag not in todo.tags:
            todo.tags.append(tag)

    def tick(self, number, position):
        """Tick one step of a todo."""
        self[number].step(position).ticked = True

    def finish(self, number, today):
        """Mark a todo as done. Returns the one that takes its place, or None."""
        todo = self[number]
        if todo.done:
            raise JotError("#{} is done already".format(number))
        todo.done = True
        todo.log("done on {}".format(today.isoformat()))
        if todo.every is None:
            return None
        return self._put(successor(todo, self._next_number()))

    def open(self, tag=None):
        """The todos that are not done, those that are due first at the top."""
        todos = [todo for todo in self if not todo.done and (tag is None or tag in todo.tags)]
        return sorted(todos, key=lambda todo: (todo.due is None, todo.due or 0, todo.number))

    def _next_number(self):
        return max(self._todos, default=0) + 1

    def _put(self, todo):
        self._todos[todo.number] = todo
        return todo
