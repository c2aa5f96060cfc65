"""Cases of output: bytes, limits, floods."""

import hashlib
import resource
import sys
from collections.abc import Callable
from functools import partial

from ...sandboxes import Sandbox
from ...types import ExecResult
from .case import Opener, case, ok, run_all

MIB = 1 << 20
CLIENT_GROWTH = 50 * MIB


def check_cut(result: ExecResult, total: int, limit: int) -> None:
    """Assert that a stream of `total` bytes was truncated to `limit` and counted."""
    assert len(result.stdout) <= limit, f"{len(result.stdout)} bytes kept of at most {limit}"
    assert len(result.stdout) >= limit // 2, f"only {len(result.stdout)} bytes kept of {limit}"
    assert result.stdout_dropped + len(result.stdout) >= total, f"{result.stdout_dropped} dropped of {total}"
    assert result.stdout_dropped <= total, f"{result.stdout_dropped} dropped of {total}"


def client_peak() -> int:
    """Return the peak memory of this process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


@case("output")
def any_bytes(sandbox: Sandbox) -> None:
    """Output is bytes: invalid UTF-8, NULs, carriage returns and a missing final newline are returned unchanged."""
    for text in (b"\xff\xfe\x80", b"a\r\nb\rc", b"\x00" * 100, "é😀".encode(), b"no newline", bytes(range(256)) * 300):
        assert ok(sandbox.exec("cat", stdin=text)).stdout == text


@case("output")
def characters_across_chunks(sandbox: Sandbox) -> None:
    """A four-byte character stays whole across chunks."""
    for size in (4096, 8192, 32768, 65536):
        for before in (1, 2, 3):
            text = "x" * (size - before) + "😀é" * 3
            program = "import sys; sys.stdout.write(sys.stdin.read())"
            result = ok(sandbox.exec(["python3", "-c", program], stdin=text.encode()))
            assert result.text == text, f"a character at {size - before} was damaged"


@case("output")
def limit_is_exact(sandbox: Sandbox) -> None:
    """Output up to the limit is whole; one more byte is dropped and counted; a limit of 0 keeps nothing."""
    for size in (99, 100):
        result = ok(sandbox.exec(f"head -c {size} /dev/zero", max_output=100))
        assert (result.stdout, result.stdout_dropped) == (b"\0" * size, 0), result
    check_cut(ok(sandbox.exec("head -c 101 /dev/zero", max_output=100)), 101, 100)
    result = ok(sandbox.exec("echo hidden; echo hidden >&2", max_output=0))
    assert (result.stdout, result.stderr) == (b"", b""), result
    assert (result.stdout_dropped, result.stderr_dropped) == (7, 7), result


@case("output")
def both_ends_are_kept(sandbox: Sandbox) -> None:
    """Long output keeps the first quarter and the last three quarters of the limit, on either stream."""
    whole = "".join(f"{number}\n" for number in range(1, 50_001))
    result = ok(sandbox.exec("seq 50000", max_output=4000))
    check_cut(result, len(whole), 4000)
    assert result.text.startswith(whole[:900]), "the head is missing"
    assert result.text.endswith(whole[-2900:]), "the tail is missing"
    errors = ok(sandbox.exec("seq 50000 >&2", max_output=4000))
    assert (errors.stderr, errors.stderr_dropped) == (result.stdout, result.stdout_dropped), errors


@case("output", "slow")
def flood_that_ends(sandbox: Sandbox) -> None:
    """100 MB on one line and 100 MB of NULs neither block nor end the command, nor fill this process's memory."""
    before = client_peak()
    size = 100_000_000
    for command in (f"head -c {size} /dev/zero | tr '\\0' x", f"head -c {size} /dev/zero"):
        result = ok(sandbox.exec(command, max_output=100_000, timeout=25))
        check_cut(result, size, 100_000)
    assert client_peak() - before < CLIENT_GROWTH, f"this process grew by {(client_peak() - before) // MIB} MiB"


@case("output")
def flood_that_does_not_end(make: Opener, sandbox: Sandbox) -> None:
    """An endless output runs into the timeout; both ends are kept."""
    before = client_peak()
    with make.within(1 + 1 + 2, "an endless flood with timeout=1"):
        result = sandbox.exec("echo first; yes", timeout=1, max_output=100_000)
    assert result.timed_out, result
    assert result.stdout.startswith(b"first\ny\n"), result.stdout[:20]
    assert result.stdout.endswith((b"y\n", b"y")), result.stdout[-20:]
    assert result.stdout_dropped > 0, result
    assert client_peak() - before < CLIENT_GROWTH, f"this process grew by {(client_peak() - before) // MIB} MiB"
    assert ok(sandbox.exec("echo on")).text == "on\n"


@case("output")
def flood_on_standard_error(make: Opener) -> None:
    """A flood on one stream blocks neither the other nor the reply."""
    result = ok(make().exec("head -c 20000000 /dev/zero >&2; echo done", max_output=1000, timeout=20))
    assert result.text == "done\n", result
    assert result.stderr_dropped == 20_000_000 - len(result.stderr), result


@case("output")
def flood_from_a_child(make: Opener, sandbox: Sandbox) -> None:
    """A child that floods after its command has ended disturbs nothing."""
    with make.within(3, "a command that leaves a flooding child"):
        assert ok(sandbox.exec("yes & echo started", max_output=10)).stdout_dropped >= 0
    for number in range(10):
        assert ok(sandbox.exec(f"echo {number}")).text == f"{number}\n"


@case("output", "threads")
def floods_at_the_same_time(sandbox: Sandbox) -> None:
    """Four floods and a quiet command run concurrently; all end, and no output is mixed up."""
    size = 10_000_000

    def flood(letter: str) -> None:
        result = ok(sandbox.exec(f"head -c {size} /dev/zero | tr '\\0' {letter}", max_output=50_000, timeout=25))
        check_cut(result, size, 50_000)
        assert set(result.text) == {letter}, "the output of another command is mixed in"

    def quiet() -> None:
        for number in range(20):
            assert ok(sandbox.exec(f"echo {number}")).text == f"{number}\n"

    works: list[Callable[[], None]] = [quiet, *(partial(flood, letter) for letter in "abcd")]
    run_all(works)


@case("output")
def large_output_comes_whole(sandbox: Sandbox) -> None:
    """16 MB within the limit are returned byte for byte."""
    digest = ok(sandbox.exec("head -c 16M /dev/urandom > random && sha256sum random")).text.split()[0]
    result = ok(sandbox.exec("cat random", max_output=32 * MIB))
    assert (len(result.stdout), result.stdout_dropped) == (16 * MIB, 0), result.stdout_dropped
    assert hashlib.sha256(result.stdout).hexdigest() == digest, "the 16 MB differ"
