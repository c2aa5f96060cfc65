"""The byte stream of the E2B backend and its relay, without a service or the SDK."""

import os
import random
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from swe_gym.sandboxes.e2b.service import relay_program
from swe_gym.sandboxes.e2b.stream import Cut, Gone, ResumedStream

ECHO = """
import os
while True:
    data = os.read(0, 65536)
    if not data:
        break
    os.write(1, data)
"""


class ShakyProcess:
    """A relay on this machine; calls to it are interrupted, lost or repeated."""

    def __init__(self, folder: Path, seed: int) -> None:
        program = relay_program(str(folder), runner=ECHO)
        self._popen = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        assert self._popen.stdin
        assert self._popen.stdout
        self._input, self._output = self._popen.stdin, self._popen.stdout
        self._chances = [random.Random(seed), random.Random(seed + 100)]

    def send(self, text: str, timeout: float) -> None:  # noqa: ARG002  never slow
        luck = self._chances[0].random()
        if luck < 0.2:
            raise Cut("not sent")
        try:
            self._input.write(text.encode())
        except (OSError, ValueError):
            raise Gone("ended") from None
        if luck < 0.4:
            raise Cut("sent, but the reply was lost")

    def follow(self, opened: Callable[[], None], output: Callable[[str], None], *_: object) -> None:
        opened()
        while data := self._read(self._chances[1].randrange(1, 40_000)):
            if self._chances[1].random() < 0.1:
                raise Cut("data in transit is lost")
            output(data.decode("ascii"))
        raise Gone("ended")

    def _read(self, size: int) -> bytes:
        try:
            return self._output.read(size)
        except (OSError, ValueError):  # closed by another thread
            return b""

    def check(self) -> None:
        """Succeeds."""

    def renew(self) -> None:
        """Succeeds."""

    def end(self) -> None:
        self._input.close()
        self._popen.wait(60)


@pytest.mark.parametrize("seed", range(4))
def test_no_byte_is_lost_or_duplicated(tmp_path: Path, seed: int) -> None:
    process = ShakyProcess(tmp_path, seed)
    stream = ResumedStream(process, name="shaky", send_seconds=5, listen_seconds=60, renew_seconds=60)
    chance = random.Random(seed)
    for size in (1, 100, 40_000, 300_000, 7):
        data = chance.randbytes(size)
        stream.write(data, 60)
        received = b""
        while len(received) < len(data):
            received += stream.read(60)
        assert received == data
    process.end()
    with pytest.raises(OSError, match="ended"):
        stream.read(10)
    stream.close()
    process._output.close()


def test_a_required_sdk_is_installed() -> None:
    assert "e2b" not in os.environ.get("SWE_GYM_REQUIRE", "").split(",") or find_spec("e2b")
