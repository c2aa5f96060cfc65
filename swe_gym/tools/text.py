"""Text for policies: bounded, without terminal control, and deterministic."""

import re

HEAD_SHARE = 4
"""The head is one part in four of what is kept, as in `Sandbox.exec`; the end of an output says more."""

NOTE_ROOM = 100
"""Characters reserved for the line that says what was cut."""

_ESCAPE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor movement
    r"|\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)"  # OSC: window titles, hyperlinks
    r"|\x1b[PX^_][^\x1b\n]*\x1b\\"  # DCS, SOS, PM, APC
    r"|\x1b[ -/]*[0-~]"  # character sets, keypad modes and the like
)
_HARMFUL = re.compile("[\x00-\x08\x0b\x0d-\x1f\x7f-\x9f\ud800-\udfff]")


def bound(text: str, limit: int) -> str:
    """Cut the middle out of a text of more than `limit` characters; a line in its place counts what is missing.

    The result has at most `limit` characters. It is cut at line ends if that costs little.
    """
    if len(text) <= limit:
        return text
    room = limit - NOTE_ROOM
    if room <= 0:
        return text[: max(0, limit)]
    return _with_gap(text[: room // HEAD_SHARE], text[room // HEAD_SHARE :], room, 0)


def bound_output(data: bytes, *, dropped: int, kept: int, limit: int) -> str:
    """Return a command's output in at most `limit` clean characters.

    Args:
        data: Output that the sandbox kept.
        dropped: Number of bytes that the sandbox cut out.
        kept: The `max_output` of the command: the cut is after its first quarter.
        limit: Maximum number of characters; more than `NOTE_ROOM`.
    """
    if not dropped:
        return bound(clean(data.decode("utf-8", "replace")), limit)
    gap = kept // HEAD_SHARE
    head, tail = (clean(part.decode("utf-8", "replace")) for part in (data[:gap], data[gap:]))
    return _with_gap(head, tail, max(0, limit - NOTE_ROOM), dropped)


def _with_gap(head: str, tail: str, room: int, dropped: int) -> str:
    """Join the start of `head` and the end of `tail`, at most `room` characters, with a note on what is missing."""
    begin = _whole_lines(head[: room // HEAD_SHARE])
    tail_room = room - room // HEAD_SHARE
    end = tail if len(tail) <= tail_room else _whole_lines_back(tail[len(tail) - tail_room :])
    missing = head[len(begin) :] + tail[: len(tail) - len(end)]
    counted = [_count(missing)] if missing else []
    counted += [f"{dropped:,} bytes"] if dropped else []
    newline = "" if begin.endswith("\n") or not begin else "\n"
    return f"{begin}{newline}[... {' and '.join(counted)} cut ...]\n{end}"


def _count(missing: str) -> str:
    lines = missing.count("\n") + (not missing.endswith("\n"))
    return f"{len(missing):,} characters" + (f" in {lines:,} lines" if lines > 1 else "")


def _whole_lines(head: str) -> str:
    end = head.rfind("\n") + 1
    return head[:end] if end > len(head) // 2 else head


def _whole_lines_back(tail: str) -> str:
    start = tail.find("\n") + 1
    return tail[start:] if start <= len(tail) // 2 else tail


def clean(output: str) -> str:
    """Return a program's output as a terminal would finally show it.

    Escape sequences are removed, a progress bar keeps its last state, backspaces erase, and other control characters
    become visible.
    """
    text = _ESCAPE.sub("", output)
    if "\r" in text or "\b" in text:
        text = "\n".join(_settle(line) if "\r" in line or "\b" in line else line for line in text.split("\n"))
    return harmless(text)


def _settle(line: str) -> str:
    if "\b" in line:
        kept: list[str] = []
        for character in line:
            if character != "\b":
                kept.append(character)
            elif kept and kept[-1] != "\r":
                kept.pop()
        line = "".join(kept)
    written = [part for part in line.split("\r") if part.strip()]
    return written[-1] if written else ""


def harmless(text: str) -> str:
    """Make control characters visible and replace lone surrogates, so that any encoder and log accepts the text.

    Tabs, line feeds and form feeds, which source files hold, stay.
    """
    return _HARMFUL.sub(_make_visible, text)


def _make_visible(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)  # control pictures: one character that reads NUL
    return "\u2421" if code == 0x7F else "\ufffd"


def shorten(line: str, limit: int) -> str:
    """Cut a line of more than `limit` characters and count the rest."""
    return line if len(line) <= limit else f"{line[:limit]} [... {len(line) - limit:,} more characters]"
