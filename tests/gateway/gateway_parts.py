"""What the tests of the gateway share: connections over sockets, samplers, and a tokenizer of bytes."""

import contextlib
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from swe_gym.gateway.session import Session
from swe_gym.gateway.token_sampler import TokenSampler
from swe_gym.rollout.tokens import ChatTemplate, Completion


class SocketConnection:
    """A connection over a socket, as a sandbox forwards one."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock

    def recv(self, size: int, *, timeout: float) -> bytes:
        self.socket.settimeout(timeout)
        try:
            return self.socket.recv(size)
        except BlockingIOError as error:
            raise TimeoutError from error

    def send(self, data: bytes, *, timeout: float) -> None:
        self.socket.settimeout(timeout)
        self.socket.sendall(data)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


@contextlib.contextmanager
def served(session: Session) -> Iterator[str]:
    """Serve a session on a port of this machine; yield its address."""
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = listener.accept()
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=session.handle, args=(SocketConnection(sock),), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(60)
        session.close()


class ByteTokenizer:
    """A tokenizer of bytes and ChatML's special tokens, with a template in Python.

    Args:
        forgets: Whether the template drops the thoughts of all answers but the last, as some do.
        shows_tools: Whether the template has a place for tools.
    """

    chat_template = "<tool_call>"
    special = ("<|im_end|>", "<|im_start|>")
    end = 256

    def __init__(self, *, forgets: bool = False, shows_tools: bool = True) -> None:
        self.forgets, self.shows_tools = forgets, shows_tools

    def apply_chat_template(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        tokenize: bool,
        add_generation_prompt: bool,
        tools: Sequence[dict[str, Any]] = (),
    ) -> str:
        assert not tokenize
        parts = [f"<|im_start|>tools\n{json.dumps(list(tools))}<|im_end|>\n"] if tools and self.shows_tools else []
        for index, message in enumerate(messages):
            content = message["content"]
            if self.forgets and index < len(messages) - 1 and message["role"] == "assistant":
                content = content.split("</think>")[-1].lstrip("\n")
            if reasoning := message.get("reasoning_content"):
                kept = not self.forgets or index == len(messages) - 1
                content = f"<think>{reasoning}</think>\n{content}" if kept else content
            calls = [f"<tool_call>\n{json.dumps(call['function'])}\n</tool_call>" for call in _calls(message)]
            said = "\n".join(filter(None, [content, *calls]))
            parts.append(f"<|im_start|>{message['role']}\n{said}<|im_end|>\n")
        return "".join([*parts, "<|im_start|>assistant\n" if add_generation_prompt else ""])

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        ids: list[int] = []
        for part in re.split(f"({'|'.join(map(re.escape, self.special))})", text):
            ids += [256 + self.special.index(part)] if part in self.special else part.encode()
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> str:
        assert not skip_special_tokens
        assert not clean_up_tokenization_spaces
        names = [one.encode() for one in self.special]
        return b"".join(names[one - 256] if one > 255 else bytes([one]) for one in ids).decode("utf-8", "replace")


def _calls(message: dict[str, Any]) -> list[Any]:
    return [
        {"function": {name: call["function"][name] for name in ("name", "arguments")}}
        for call in message.get("tool_calls") or ()
    ]


class Scripted:
    """A generator whose answers come from a function of the number of the call, in tokens of `ByteTokenizer`."""

    def __init__(self, say: Callable[[int], str]) -> None:
        self.say = say
        self.sampled: list[tuple[list[int], Completion]] = []
        self.temperatures: set[float] = set()
        self.lock = threading.Lock()

    def generate(self, prompt: Sequence[int], *, max_tokens: int, temperature: float, seed: int | None) -> Completion:  # noqa: ARG002
        self.temperatures.add(temperature)
        with self.lock:
            number = len(self.sampled)
            ids = [*ByteTokenizer().encode(self.say(number), add_special_tokens=False), ByteTokenizer.end][:max_tokens]
            logprobs = [-(number * 1000 + index + 1) / 1e6 for index in range(len(ids))]
            made = Completion(ids, logprobs, "stop" if ids[-1] == ByteTokenizer.end else "length", number)
            self.sampled.append((list(prompt), made))
        return made


class Feed:
    """A client in memory, which sends bytes and then waits, or ends.

    Args:
        sent: What it sends.
        deaf: Whether it is gone before it receives anything.
        lost: Whether it receives the whole answer, which the gateway does not learn.
        during: Called when an answer is sent, before it arrives.
    """

    def __init__(
        self, sent: bytes, *, deaf: bool = False, lost: bool = False, during: Callable[[], None] = lambda: None
    ) -> None:
        self.left, self.deaf, self.lost, self.during = sent, deaf, lost, during
        self.received = b""
        self.closed = False

    def recv(self, size: int, *, timeout: float) -> bytes:
        if not self.left and timeout == 0:
            raise TimeoutError
        data, self.left = self.left[:size], self.left[size:]
        return data

    def send(self, data: bytes, *, timeout: float) -> None:  # noqa: ARG002  never waits
        self.during()
        if not self.deaf:
            self.received += data
        if self.deaf or self.lost:
            raise ConnectionError("gone")

    def close(self) -> None:
        self.closed = True


def post(path: str, body: object, **headers: str) -> bytes:
    """Return a request."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items()]
    head = f"POST {path} HTTP/1.1\r\nHost: model\r\nContent-Length: {len(data)}\r\n{''.join(lines)}\r\n"
    return head.encode() + data


def asked(session: Session, path: str, body: object, **headers: str) -> tuple[int, Any]:
    """Send a request over a connection of its own; return the status and the JSON of the answer."""
    feed = Feed(post(path, body, **headers))
    session.handle(feed)
    head, _, answer = feed.received.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(answer)


BASH = {
    "name": "bash",
    "description": "Runs a command.",
    "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
}
TOOLS = [{"type": "function", "function": BASH}]


def tokens(
    say: Callable[[int], str], *, forgets: bool = False, shows_tools: bool = True, **options: Any
) -> tuple[TokenSampler, Scripted]:
    """Return a sampler with scripted answers, and its generator."""
    generator, tokenizer = Scripted(say), ByteTokenizer(forgets=forgets, shows_tools=shows_tools)
    return TokenSampler(generator, ChatTemplate(tokenizer), **options), generator
