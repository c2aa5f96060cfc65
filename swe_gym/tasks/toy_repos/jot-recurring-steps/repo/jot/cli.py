"""The command line."""

import argparse
import shlex
import sys
from datetime import date

from . import render, store
from .model import JotError


def build_parser():
    """The parser of all commands."""
    parser = argparse.ArgumentParser(prog="jot", description="A todo list for the command line.")
    parser.add_argument("--file", default="jot.json", help="where the list is kept")
    commands = parser.add_subparsers(dest="command", required=True)

    add = commands.add_parser("add", help="put something on the list")
    add.add_argument("title")
    add.add_argument("--due", type=date.fromisoformat, metavar="YYYY-MM-DD")
    add.add_argument("--every", choices=["day", "week", "month"])
    add.add_argument("--tag", action="append", default=[], dest="tags")
    add.add_argument("--step", action="append", default=[], dest="steps")

    listing = commands.add_parser("list", help="show what is open")
    listing.add_argument("--tag")

    tag = commands.add_parser("tag", help="add a tag")
    tag.add_argument("number", type=int)
    tag.add_argument("tag")

    tick = commands.add_parser("tick", help="tick a step")
    tick.add_argument("number", type=int)
    tick.add_argument("position", type=int)

    done = commands.add_parser("done", help="finish something")
    done.add_argument("number", type=int)
    done.add_argument("--today", type=date.fromisoformat, metavar="YYYY-MM-DD")

    show = commands.add_parser("show", help="show one todo with all details")
    show.add_argument("number", type=int)

    commands.add_parser("shell", help="read commands from the standard input")
    return parser


def execute(todos, options):
    """Run one command on the list and return the lines to print."""
    if options.command == "add":
        todo = todos.add(options.title, options.due, options.every, options.tags, options.steps)
        return ["#{} {}".format(todo.number, todo.title)]
    if options.command == "list":
        return [render.one_line(todo) for todo in todos.open(options.tag)]
    if options.command == "tag":
        todos.tag(options.number, options.tag)
    elif options.command == "tick":
        todos.tick(options.number, options.position)
    elif options.command == "done":
        following = todos.finish(options.number, options.today or date.today())
        if following is None:
            return ["done #{}".format(options.number)]
        return ["done #{}, next is #{} on {}".format(options.number, following.number, following.due.isoformat())]
    elif options.command == "show":
        return render.full(todos[options.number])
    return []


def shell(todos, parser, lines):
    """Run one command for each line and yield what there is to print."""
    for line in lines:
        if line.strip():
            yield from execute(todos, parser.parse_args(shlex.split(line)))


def main(argv=None, stdin=None, stdout=None):
    """Run the command line and return the exit status."""
    stdin, stdout = stdin or sys.stdin, stdout or sys.stdout
    parser = build_parser()
    options = parser.parse_args(argv)
    try:
        todos = store.load(options.file)
        output = shell(todos, parser, stdin) if options.command == "shell" else execute(todos, options)
        for line in output:
            print(line, file=stdout)
        store.save(todos, options.file)
    except JotError as error:
        print("jot: {}".format(error), file=stdout)
        return 1
    return 0
