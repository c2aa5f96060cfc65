"""Todos as text."""


def one_line(todo):
    """A todo as the list shows it."""
    parts = ["#{} {}".format(todo.number, todo.title)]
    if todo.due:
        parts.append("due {}".format(todo.due.isoformat()))
    if todo.steps:
        parts.append("{}/{}".format(sum(step.ticked for step in todo.steps), len(todo.steps)))
    if todo.tags:
        parts.append(" ".join(todo.tags))
    return "  ".join(parts)


def full(todo):
    """All there is to say about a todo, as a list of lines."""
    lines = ["#{} {}{}".format(todo.number, todo.title, " (done)" if todo.done else "")]
    if todo.due:
        lines.append("due {}{}".format(todo.due.isoformat(), ", every {}".format(todo.every) if todo.every else ""))
    if todo.tags:
        lines.append("tags {}".format(", ".join(todo.tags)))
    lines.extend("[{}] {}".format("x" if step.ticked else " ", step.text) for step in todo.steps)
    lines.extend("* {}".format(entry) for entry in todo.history)
    return lines
