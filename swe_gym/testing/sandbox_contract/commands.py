"""Cases of commands: their input and their results."""

import json
import os
import random
import secrets
from collections.abc import Callable
from functools import partial

from ...errors import SandboxError, UsageError
from ...sandboxes import Sandbox
from .case import (
    Opener,
    case,
    check_refused,
    eventually,
    new_marker,
    ok,
    processes_here,
    processes_inside,
    python,
    run_all,
)

PRINT_ARGUMENTS = "import json, sys; print(json.dumps(sys.argv[1:]))"
PRINT_ENVIRONMENT = "import json, os; print(json.dumps(dict(os.environ)))"

SERVE = """
import os, socket
with socket.socket(socket.AF_UNIX) as server:
    server.bind("new")
    server.listen()
    os.rename("new", "socket")
    while True:
        with server.accept()[0] as client:
            client.send(b"served")
"""
ASK = "import socket\nc = socket.socket(socket.AF_UNIX)\nc.connect('socket')\nprint(c.recv(10).decode())"

HARD_WORDS = [
    "",
    " ",
    "it's",
    'say "hi"',
    "$HOME",
    "`id`",
    "a\\b",
    "line\nbreak",
    "tab\there",
    "*",
    "-n",
    "--",
    "é😀",
    "a" * 5000,
]


@case("commands")
def hello(make: Opener) -> None:
    """A command's output and exit code 0 are returned."""
    result = make().exec("echo hello")
    assert (result.exit_code, result.stdout, result.stderr) == (0, b"hello\n", b""), result
    assert result.signal is None, result
    assert not result.timed_out, result
    assert result.stdout_dropped == result.stderr_dropped == 0, result


@case("commands")
def exit_codes(sandbox: Sandbox) -> None:
    """Every exit code is a result and is returned unchanged."""
    for code in (0, 1, 2, 3, 100, 126, 127, 128, 137, 255):
        result = sandbox.exec(f"exit {code}")
        assert (result.exit_code, result.signal) == (code, None), f"exit {code}: {result}"


@case("commands")
def commands_that_cannot_start(sandbox: Sandbox) -> None:
    """An unknown command has exit code 127, a file that cannot be executed 126; neither raises."""
    sandbox.write_file("plain.txt", b"no program")
    for command in ("no-such-command-at-all", ["no-such-command-at-all", "x"]):
        result = sandbox.exec(command)
        assert result.exit_code == 127, f"{command}: {result}"
    for command in ("./plain.txt", ["./plain.txt"], ["/"]):
        result = sandbox.exec(command)
        assert result.exit_code == 126, f"{command}: {result}"
    assert "no-such-command" in sandbox.exec("no-such-command-at-all", merge=True).text


@case("commands")
def signals_that_end_a_command(sandbox: Sandbox) -> None:
    """A command killed by a signal has that signal and no exit code."""
    for number in (1, 6, 9, 11, 15):
        result = sandbox.exec(f"kill -{number} $$")
        assert (result.exit_code, result.signal, result.timed_out) == (None, number, False), f"{number}: {result}"


@case("commands")
def shell_lines(sandbox: Sandbox) -> None:
    """A string is a shell script: pipes, quotes, here-documents, several lines."""
    script = "x='it'\"'\"'s'\nfor i in 1 2; do\n  echo \"$x $i\" | tr a-z A-Z\ndone\ncat <<'END'\n$x `id` \\\nEND\n"
    result = sandbox.exec(script)
    assert result.text == "IT'S 1\nIT'S 2\n$x `id` \\\n", result
    assert sandbox.exec("if then fi (").exit_code not in (0, None), "a syntax error is a result"
    assert sandbox.exec("echo 'unclosed").exit_code not in (0, None), "an unclosed quote is a result"
    assert ok(sandbox.exec("echo $((6 * 7))")).text == "42\n", "a broken script must not wedge the next"


@case("commands")
def argument_lists(make: Opener) -> None:
    """The words of a list arrive unchanged, without a shell."""
    seen = json.loads(python(make(), PRINT_ARGUMENTS, *HARD_WORDS))
    assert seen == HARD_WORDS, f"sent {HARD_WORDS}, arrived {seen}"


@case("commands")
def two_streams(sandbox: Sandbox) -> None:
    """Standard output and standard error are separate, or merged in the order of writing."""
    script = "for i in $(seq 200); do echo out$i; echo err$i >&2; done"
    apart = ok(sandbox.exec(script))
    assert apart.text == "".join(f"out{i}\n" for i in range(1, 201)), apart
    assert apart.error_text == "".join(f"err{i}\n" for i in range(1, 201)), apart
    merged = ok(sandbox.exec(script, merge=True))
    assert merged.text == "".join(f"out{i}\nerr{i}\n" for i in range(1, 201)), merged
    assert merged.stderr == b"", merged


@case("commands")
def no_output(sandbox: Sandbox) -> None:
    """A silent command gives two empty streams."""
    for command in ("true", ["true"], ""):
        result = sandbox.exec(command)
        assert (result.exit_code, result.stdout, result.stderr) == (0, b"", b""), f"{command!r}: {result}"


@case("commands")
def working_directory(sandbox: Sandbox) -> None:
    """Commands start in the workdir or in `cwd`; a missing `cwd` is exit code 127."""
    ok(sandbox.exec("mkdir -p 'sub dir/deep'"))
    assert sandbox.exec("pwd").text.strip() == sandbox.workdir
    assert sandbox.exec("pwd", cwd="sub dir/deep").text.strip() == f"{sandbox.workdir}/sub dir/deep"
    assert sandbox.exec("pwd", cwd="/").text.strip() == "/"
    ok(sandbox.exec("cd /"))
    assert sandbox.exec("pwd").text.strip() == sandbox.workdir, "commands must not share a working directory"
    for command in ("pwd", ["pwd"]):
        result = sandbox.exec(command, cwd="missing")
        assert (result.exit_code, result.stdout) == (127, b""), result


@case("commands")
def environment_is_clean(make: Opener) -> None:
    """Commands see the clean environment, the spec's and the call's, and nothing of the host's."""
    secret = f"SWE_GYM_CONTRACT_{secrets.token_hex(8)}"
    os.environ[secret] = "secret"
    try:
        sandbox = make(env={"FROM_SPEC": "{workdir}/x", "BOTH": "spec"})
        seen = json.loads(
            ok(sandbox.exec(["python3", "-c", PRINT_ENVIRONMENT], env={"BOTH": "call", "ODD": "a\nb'é"})).text
        )
    finally:
        del os.environ[secret]
    assert secret not in seen, "a variable of the host is visible"
    assert seen["FROM_SPEC"] == f"{sandbox.workdir}/x", seen
    assert (seen["BOTH"], seen["ODD"]) == ("call", "a\nb'é"), seen
    wanted = {"PAGER": "cat", "GIT_PAGER": "cat", "NO_COLOR": "1", "TERM": "dumb", "LC_ALL": "C.UTF-8"}
    assert {name: seen.get(name) for name in wanted} == wanted, seen
    assert {"PATH", "HOME"} <= seen.keys(), seen
    assert "BOTH" in sandbox.exec("export EXPORTED=1; env").text
    assert "EXPORTED" not in sandbox.exec("env").text, "commands must not share an environment"


@case("commands")
def large_environment(make: Opener) -> None:
    """An environment of a megabyte arrives."""
    env = {f"BIG_{index}": str(index) * 25_000 for index in range(10, 30)}
    seen = json.loads(ok(make().exec(["python3", "-c", PRINT_ENVIRONMENT], env=env, max_output=4 << 20)).text)
    assert env.items() <= seen.items(), "a variable is missing or truncated"


@case("commands")
def standard_input(make: Opener, sandbox: Sandbox) -> None:
    """Stdin arrives byte for byte and then ends; without any, it is empty."""
    everything = bytes(range(256)) * 5000
    assert ok(sandbox.exec("cat", stdin=everything, max_output=2 << 20)).stdout == everything
    assert ok(sandbox.exec("cat", stdin=b"\x00")).stdout == b"\x00"
    with make.within(5, "reading an empty stdin"):
        assert ok(sandbox.exec("cat; cat")).stdout == b""
    with make.within(5, "not reading a large stdin"):
        ok(sandbox.exec("true", stdin=everything))
        assert ok(sandbox.exec("head -c 3", stdin=b"abcdef" * 100_000)).stdout == b"abc"
        assert ok(sandbox.exec("exec <&-; echo on", stdin=everything)).text == "on\n"


@case("commands")
def no_terminal(sandbox: Sandbox) -> None:
    """No stream is a terminal, there is no controlling terminal, and git does not page or colour."""
    for stream in (0, 1, 2):
        assert sandbox.exec(f"test -t {stream}").exit_code == 1, f"stream {stream} is a terminal"
    assert sandbox.exec("exec 3</dev/tty").exit_code != 0, "a command can open a terminal"
    if sandbox.exec("git --version").ok:
        commit = "git -c user.name=a -c user.email=a@b commit -q --allow-empty -m subject"
        log = ok(sandbox.exec(f"mkdir repo && cd repo && git init -q . && {commit} && git log --oneline", timeout=10))
        assert log.stdout.endswith(b"subject\n"), log
        assert b"\x1b" not in log.stdout, log


@case("commands")
def signals_have_their_default_meaning(sandbox: Sandbox) -> None:
    """No signal is blocked or ignored, so that pipes end and Ctrl-C works as in a terminal."""
    status = ok(sandbox.exec(["cat", "/proc/self/status"])).text
    masks = dict(line.split(":\t") for line in status.splitlines() if line.startswith(("SigBlk", "SigIgn")))
    ordinary = (1 << 31) - 1  # the C library reserves the two above
    assert not any(int(mask, 16) & ordinary for mask in masks.values()), masks
    assert sandbox.exec("yes | head -n 1; exit ${PIPESTATUS[0]}", timeout=10).exit_code == 141


@case("commands")
def only_the_three_streams_are_open(make: Opener) -> None:
    """A command inherits only its three streams, so it cannot reach the control channel."""
    listing = "import os; print(sorted(int(name) for name in os.listdir('/proc/self/fd')))"
    seen = json.loads(python(make(), listing))
    assert set(seen) <= {0, 1, 2, 3}, f"descriptors {seen} are open; 3 is the listing's own"


@case("commands")
def places_to_work_in(sandbox: Sandbox) -> None:
    """A temporary folder, HOME and the usual devices exist and are usable."""
    ok(sandbox.exec('f=$(mktemp) && echo x >"$f" && rm "$f" && touch "$HOME/file" && rm "$HOME/file"'))
    ok(sandbox.exec("test -c /dev/null && head -c 8 /dev/zero >/dev/null && head -c 8 /dev/urandom >/dev/null"))
    assert ok(sandbox.exec("cat <(echo one) /dev/stdin", stdin=b"two\n")).text == "one\ntwo\n"


@case("commands")
def absolute_temporary_paths(sandbox: Sandbox) -> None:
    """Commands and `write_file` can write to /tmp and /var/tmp."""
    for folder in ("/tmp", "/var/tmp"):
        sandbox.write_file(f"{folder}/contract/file", b"y")
        ok(sandbox.exec(f"cat {folder}/contract/file && rm -r {folder}/contract"))


@case("commands")
def shared_memory(make: Opener) -> None:
    """Programs can share memory and semaphores: Python's multiprocessing works."""
    pool = "import multiprocessing\nprint(multiprocessing.get_context('fork').Pool(2).map(abs, [-1, -2]))"
    assert python(make(), pool) == "[1, 2]\n"


@case("commands")
def shared_memory_has_its_usual_size(sandbox: Sandbox) -> None:
    """`/dev/shm` has 64 MiB, and `/etc/mtab` lists it, as in a container."""
    assert ok(sandbox.exec("df -m /dev/shm | awk 'NR == 2 {print $2}'; grep -c /dev/shm /etc/mtab")).text == "64\n1\n"


@case("commands")
def own_loopback(make: Opener) -> None:
    """Programs in the sandbox can talk to each other over the loopback interface."""
    program = (
        "import socket\ns = socket.create_server(('127.0.0.1', 0))\n"
        "c = socket.create_connection(s.getsockname(), 5)\nprint('connected')"
    )
    assert python(make(), program) == "connected\n"


@case("commands")
def git_works(sandbox: Sandbox) -> None:
    """git, if installed, commits files written by `write_file` and by commands."""
    if sandbox.exec("git --version").ok:
        sandbox.write_file("repo/a.txt", b"text\n")
        git = "git init -q . && git add -A && git -c user.name=a -c user.email=a@b commit -qm m && git status --short"
        assert ok(sandbox.exec(git, cwd="repo")).text == ""


@case("commands")
def long_shell_line(sandbox: Sandbox) -> None:
    """A script of 200 kB runs."""
    for size in (120_000, 131_000, 131_072, 140_000, 200_000):
        result = sandbox.exec("printf '%s' '" + "x" * size + '\' | wc -c; echo "$0 $#"; cat; exit 5', stdin=b"input\n")
        assert result.exit_code == 5, f"{size}: {result}"
        assert result.text.split() == [str(size), "bash", "0", "input"], f"{size}: {result}"


@case("commands")
def long_argument_list(sandbox: Sandbox) -> None:
    """200 kB in many arguments arrive; one argument above the system's limit is a result, not an error."""
    program = "import sys; print(len(sys.argv[1:]), sum(map(len, sys.argv[1:])))"
    assert python(sandbox, program, *["y" * 1000] * 200) == "200 200000\n"
    result = sandbox.exec(["printf", "%s", "z" * 3_000_000])
    assert result.exit_code not in (0, None), result
    assert ok(sandbox.exec("echo on")).text == "on\n"


@case("commands")
def hundred_commands_in_a_row(sandbox: Sandbox) -> None:
    """A hundred consecutive commands each return their own output."""
    for number in range(100):
        assert ok(sandbox.exec(f"echo {number}")).text == f"{number}\n"


@case("commands", "threads")
def sixteen_threads(make: Opener, sandbox: Sandbox) -> None:
    """Commands of many threads run concurrently in one sandbox, each with its own output."""

    def one(number: int) -> str:
        word = f"word-{number} " * 2000
        assert ok(sandbox.exec("sleep 1; cat", stdin=word.encode())).text == word, (
            f"thread {number} got another thread's output"
        )
        return word

    with make.within(8, "16 commands of 1 s at the same time"):
        run_all([partial(one, number) for number in range(16)])


@case("commands", "threads")
def threads_with_everything(sandbox: Sandbox) -> None:
    """Commands, files and manifests of many threads do not disturb each other."""

    def one(number: int) -> None:
        data = f"{number}-".encode() * 10_000
        for turn in range(8):
            sandbox.write_file(f"{number}/{turn}", data)
            assert sandbox.read_file(f"{number}/{turn}") == data, f"thread {number} read another's file"
            seen = ok(sandbox.exec(["cat", f"{number}/{turn}"])).stdout
            assert seen == data, f"thread {number} got {len(seen)} bytes of {len(data)}: {seen[:20]!r}"
        assert len(sandbox.manifest(str(number))) == 8

    run_all([partial(one, number) for number in range(16)])


@case("commands")
def background_children_do_not_delay(make: Opener, sandbox: Sandbox) -> None:
    """The reply comes when the leader exits; children that hold its pipes delay it by at most 0.2 s."""
    plain: list[float] = []
    held: list[float] = []
    for _ in range(5):
        for command, times in (("echo hi", plain), ("sleep 30 & echo hi", held), ("setsid sleep 30 & echo hi", held)):
            result = ok(sandbox.exec(command))
            assert result.text == "hi\n", result
            times.append(result.duration)
    assert min(held) <= min(plain) + 0.2, f"children that hold the pipes delay the reply: {min(held):.2f} s"
    with make.within(3, "a command with a child that holds the pipes"):
        ok(sandbox.exec("sleep 30 & (sleep 30 &) ; echo hi"))


@case("commands")
def late_output_is_discarded(sandbox: Sandbox) -> None:
    """Output of a child after its command has ended appears in no other command's output."""
    ok(sandbox.exec("(for i in $(seq 100); do echo late; echo late >&2; sleep 0.02; done; touch printed) & echo early"))
    assert sandbox.exec("while [ ! -e printed ]; do sleep 0.05; done; echo mine", merge=True).text == "mine\n"


@case("commands")
def servers_live_until_close(sandbox: Sandbox) -> None:
    """A server started with `&` answers later commands, and ends when the sandbox is closed."""
    marker = new_marker()
    ok(sandbox.exec(["bash", "-c", 'python3 -c "$0" $1 & until [ -S socket ]; do sleep 0.05; done', SERVE, marker]))
    for _ in range(3):
        assert python(sandbox, ASK) == "served\n"
    assert processes_inside(sandbox, marker), "the server is gone"
    sandbox.close()
    eventually(lambda: not processes_here(marker), 2, "the server outlived its sandbox")


@case("commands", "hostile")
def text_cannot_fake_a_reply(sandbox: Sandbox) -> None:
    """No output ends, fakes or shifts a reply: frames, markers, prompts, random bytes and NULs are returned whole."""
    noise = random.Random(0)
    texts = [
        b"SWE1\x00\x00\x00\x0b\x00\x00\x00\x00" + b'{"id": 1, "exit_code": 0}',
        b"\x00\x00\x00\x05hello" * 100,
        b"(Pdb) \n$ \n# \n>>> \nPS1 __END__ EOF\n\x04\x03\x1a",
        b'{"id": 1, "error": ["EIO", "x"]}\n' * 50,
        b"\x1b[31m\x1b]0;title\x07\r\n",
        noise.randbytes(200_000),
    ]
    for text in texts:
        sandbox.write_file("in", text)
        result = ok(sandbox.exec("cat; cat in >&2", stdin=text))
        assert result.stdout == result.stderr == text, f"the output differs: {text[:40]!r}"
    assert ok(sandbox.exec("echo next")).text == "next\n"


@case("commands", "hostile")
def odd_strings_never_wedge(sandbox: Sandbox) -> None:
    """A NUL or a lone surrogate in a command, a variable or a folder gives a result or a `UsageError`."""
    odd: list[str | list[str]] = ["echo a\0b", ["echo", "a\0b"], "echo \ud800", ["echo", "\udcff"], "\x00", "\n", [""]]
    calls: dict[str, Callable[[], object]] = {repr(command): partial(sandbox.exec, command) for command in odd}
    for word in ("a\0b", "\ud800", "a=b", ""):
        calls[f"variable {word!r}"] = partial(sandbox.exec, "true", env={word: "x"})
        calls[f"value {word!r}"] = partial(sandbox.exec, "true", env={"X": word})
        calls[f"folder {word!r}"] = partial(sandbox.exec, "true", cwd=word)
    for what, call in calls.items():
        try:
            call()
        except UsageError:
            pass
        except SandboxError as error:
            raise AssertionError(f"{what} is blamed on the sandbox: {error}") from error
        assert ok(sandbox.exec("echo on")).text == "on\n", f"after {what}"


@case("commands")
def senseless_arguments(sandbox: Sandbox) -> None:
    """Invalid arguments are a `UsageError`, and the sandbox stays open."""
    endless, unknown = float("inf"), float("nan")
    numbers = [("timeout", 0), ("timeout", -1), ("timeout", endless), ("timeout", unknown)]
    for name, value in [*numbers, ("grace", -1), ("grace", endless), ("max_output", -1)]:
        call = partial(sandbox.exec, "true", **{name: value})  # type: ignore[arg-type]  # invalid on purpose
        check_refused(UsageError, call, f"{name}={value}")
    check_refused(UsageError, lambda: sandbox.exec([]), "an empty argument list")
    ok(sandbox.exec("true"))
