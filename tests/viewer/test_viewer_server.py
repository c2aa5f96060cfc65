"""The server of the page: access, policy and answers."""

import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import pytest
from runs_on_disk import failed, run_info, trajectory, turn, write_run

from swe_gym.errors import UsageError
from swe_gym.trajectories.run_folder import RunFolder
from swe_gym.trajectories.trajectory import Segment
from swe_gym.viewer.episode import PIECE, search
from swe_gym.viewer.index import RunIndex
from swe_gym.viewer.runs import NOTES, notes_path, write_note
from swe_gym.viewer.server import STATIC, ViewServer


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


def get(server: ViewServer, path: str = "", *, root: str | None = None, host: str | None = None) -> Reply:
    url = urlsplit(server.url)
    connection = http.client.HTTPConnection("127.0.0.1", url.port, timeout=20)
    try:
        target = (url.path if root is None else root) + path
        connection.putrequest("GET", target, skip_host=True)
        connection.putheader("Host", host if host is not None else url.netloc)
        connection.endheaders()
        reply = connection.getresponse()
        return Reply(reply.status, dict(reply.headers), reply.read().decode())
    finally:
        connection.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ViewServer]:
    path = write_run(tmp_path / "run", trajectory(resolved=True), trajectory(attempt=1), failed("b-2"))
    with ViewServer(path) as server:
        yield server


def test_the_page_and_its_files_are_served(server: ViewServer) -> None:
    assert "<main" in get(server).text
    for name, kind in STATIC.items():
        reply = get(server, name)
        assert (reply.status, reply.headers["Content-Type"]) == (200, kind)
        assert f'"{name}"' in get(server).text or name == "index.html"


def test_every_response_has_a_strict_policy(server: ViewServer) -> None:
    for path in ("", "app.js", "api/rows", "api/nothing"):
        headers = get(server, path).headers
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
        assert "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cache-Control"] == "no-store"


def test_it_listens_on_this_machine_only(server: ViewServer) -> None:
    address = urlsplit(server.url)
    assert address.hostname == "127.0.0.1"
    assert server._server.socket.getsockname()[0] == "127.0.0.1"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8642", "127.0.0.1.evil.example:80", "", "localhost.:1"])
def test_dns_rebinding_is_refused(server: ViewServer, host: str) -> None:
    reply = get(server, "api/rows", host=host)
    assert reply.status == 403
    assert "a-1" not in reply.text


@pytest.mark.parametrize("host", ["localhost:9000", "127.0.0.1:9000", "localhost"])
def test_a_forwarded_port_works(server: ViewServer, host: str) -> None:
    assert get(server, "api/rows", host=host).status == 200


@pytest.mark.parametrize("root", ["/", "/guess/", "", "/x" * 20])
def test_nothing_is_served_without_the_secret(server: ViewServer, root: str) -> None:
    for path in ("api/rows", "index.html", "api/episode?id=line-0"):
        if root or path.startswith("/"):
            reply = get(server, path, root=root)
            assert (reply.status, "a-1" in reply.text) == (403, False)


def test_two_servers_have_two_secrets(tmp_path: Path) -> None:
    path = write_run(tmp_path, trajectory())
    with ViewServer(path) as one, ViewServer(path) as other:
        assert urlsplit(one.url).path != urlsplit(other.url).path


@pytest.mark.parametrize(
    "path",
    ["../run.json", "..%2frun.json", "/etc/passwd", "static/app.js", "api/../run.json", "%2e%2e/server.py", "run.json"],
)
def test_no_other_file_is_served(server: ViewServer, path: str) -> None:
    reply = get(server, path)
    assert reply.status == 404
    assert "abc" not in reply.text


@pytest.mark.parametrize(
    "path",
    [
        "%",
        "%zz",
        "api/rows%0",
        "api/%ff",
        "api/%00",
        "run.json%00.css",
        "api/episode?id=%00",
        "api/episode?id=line-0%0d%0aSet-Cookie:%201",
        "api/episode?id=%ff%fe",
        "api/episode?id=" + "x" * 50_000,
        "x" * 60_000,
        "api/episode?id=line-0&turns=-1",
        "api/episode?id=line-0&turns=%C2%B2",
        "api/episode?id=line-0&turns=" + "9" * 4000,
        "api/rows?known=" + "9" * 5000,
        "api/rows?known=1e3",
        "api/rows?" + "&".join(f"a{n}=1" for n in range(100)),
    ],
)
def test_a_malformed_address_is_a_400(server: ViewServer, path: str) -> None:
    reply = get(server, path)
    assert reply.status == 400
    assert reply.json["error"].endswith(".")
    assert get(server, "api/rows").status == 200


def test_rows_are_sent_once(server: ViewServer) -> None:
    first = get(server, "api/rows").json
    assert [row[2:5:2] for row in first["rows"]] == [["a-1", 0], ["a-1", 1], ["b-2", 0]]
    again = get(server, f"api/rows?generation={first['generation']}&known=3").json
    assert (again["start"], again["rows"]) == (3, [])


def test_an_episode_has_its_verdict_and_not_its_tokens(tmp_path: Path) -> None:
    row = Segment(token_ids=(1, 2, 3), loss_mask=(0, 1, 1), logprobs=(0.0, -0.1, -0.2), versions=(-1, 0, 0))
    system = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "issue"})
    write_run(tmp_path, trajectory(segments=(row,), messages=system, turns=3))
    with ViewServer(tmp_path) as server:
        (values,) = get(server, "api/rows").json["rows"]
        episode = get(server, f"api/episode?id={values[0]}").json
        assert episode["segments"] == [{"tokens": 3, "sampled": 2}]
        assert episode["system"] == ["Be brief."]
        assert "messages" not in episode
        assert list(episode["verdict"]["fail_to_pass"].values()) == ["failed"]
        assert [(one["tool"], one["words"], one["size"]) for one in episode["outline"]] == [
            ("bash", f"echo {n}", len(f"observation {n}")) for n in (1, 2, 3)
        ]
        assert "observation 1" not in json.dumps(episode)
        later = get(server, f"api/episode?id={values[0]}&turns=2").json
        assert (later["first_turn"], len(later["outline"])) == (2, 1)
        one, three = get(server, f"api/turns?id={values[0]}&numbers=1,3").json
        assert (one["parts"]["observation"], three["parts"]["=command"]) == ("observation 1", "echo 3")
        assert get(server, f"api/turns?id={values[0]}&numbers=4").status == 404


def test_long_texts_are_sent_in_pieces_and_searched(tmp_path: Path) -> None:
    text = "é" * PIECE + "the END" + "x" * 100_000
    turns = (turn(1), turn(2, observation=text, arguments={"command": 'say "hi"'}), turn(3))
    write_run(tmp_path, trajectory().model_copy(update={"turns": turns}))
    with ViewServer(tmp_path) as server:
        get(server, "api/rows")
        (page,) = get(server, "api/turns?id=line-0&numbers=2").json
        assert (page["parts"]["observation"], page["of"]["observation"]) == ("é" * PIECE, len(text))
        piece = f"api/text?id=line-0&turn=2&part=observation&start={PIECE}&end={PIECE + 7}"
        assert get(server, piece).json == "the END"
        assert get(server, "api/text?id=line-0&turn=2&part=other").status == 404
        (match,) = get(server, "api/search?id=line-0&words=The%20end").json["matches"]
        assert (match["turn"], match["part"], match["at"], match["text"][1]) == (2, "observation", PIECE, "the END")
        quoted = get(server, "api/search?id=line-0&words=%22HI%22").json
        assert [one["part"] for one in quoted["matches"]] == ["=command"]
        assert get(server, "api/search?id=line-0&words=observation&turn=2").json["matches"][0]["turn"] == 3


def test_a_search_ends_at_its_deadline(tmp_path: Path) -> None:
    write_run(tmp_path, trajectory(turns=3))
    index = RunIndex(tmp_path)
    index.refresh()
    turns = index.turns(index.rows[0].id)
    assert search(turns, "observation", seconds=0)["next"] == 2
    assert search(turns, "observation", first=2)["next"] == 0


@pytest.mark.parametrize(
    "query",
    ["", "id=", "id=line-1", "id=../../etc/passwd", "id=live-../run.json"],
)
def test_an_unknown_address_is_a_404(server: ViewServer, query: str) -> None:
    get(server, "api/rows")
    reply = get(server, f"api/episode?{quote(query, safe='=&')}")
    assert reply.status == 404
    assert reply.json["error"]


def test_a_running_run_is_followed(tmp_path: Path) -> None:
    with RunFolder(tmp_path, run_info()) as folder, ViewServer(tmp_path) as server:
        first = get(server, "api/rows").json
        assert (first["rows"], first["live"], first["active"]) == ([], [], False)
        file = folder.start(trajectory(turns=0, outcome="running", reason=""))
        folder.progress({"running": 1, "total": 4})
        file.add(turn(1))
        news = get(server, "api/rows").json
        (live,) = news["live"]
        assert (live[1], live[8], news["active"], news["progress"]["total"]) == ("running", 1, True, 4)
        assert len(get(server, f"api/episode?id={live[0]}").json["outline"]) == 1
        file.close()
        folder.add(trajectory())
        news = get(server, f"api/rows?generation={news['generation']}&known=0").json
        assert (len(news["rows"]), news["live"]) == (1, [])
        assert get(server, "api/stats").json["judged"] == 1


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[ViewServer]:
    """Serve a folder with two runs, one of them named like a page, and something else."""
    write_run(tmp_path / "runs" / "one, two", trajectory(), trajectory(attempt=1), failed("b-2"))
    write_run(tmp_path / "runs" / "compare", trajectory(resolved=True), config={"policy": "gold"})
    (tmp_path / "runs" / "notes").mkdir()
    with ViewServer(tmp_path / "runs") as server:
        yield server


def test_runs_are_listed_and_each_is_asked_by_its_name(runs: ViewServer) -> None:
    listed = get(runs, "api/runs").json
    assert (listed["many"], listed["name"], listed["problems"]) == (True, "runs", {})
    assert [(one["name"], one["graded"], one["failed_tries"], one["behind"]) for one in listed["runs"]] == [
        ("compare", 1, 0, False),
        ("one, two", 2, 1, False),
    ]
    assert [one["settings"] for one in listed["runs"]] == [{"policy": "gold"}, {"policy": "baseline"}]
    rows = get(runs, f"api/rows?run={quote('one, two')}").json
    assert (rows["folder"], len(rows["rows"])) == ("one, two", 3)
    episode = get(runs, f"api/episode?run=compare&id={get(runs, 'api/rows?run=compare').json['rows'][0][0]}").json
    assert episode["resolved"]
    for query in ("rows", "rows?run=notes", "rows?run=..", "rows?run=../runs/compare", "stats?run="):
        assert get(runs, f"api/{query}").status == 404


def test_runs_are_compared(runs: ViewServer) -> None:
    found = get(runs, f"api/compare?runs={quote(json.dumps(['one, two', 'compare']))}").json
    assert (found["pairs"][0]["difference"], found["pairs"][0]["tasks"]) == (1.0, 1)
    assert [[tries[:2] for tries in run] for run in found["attempts"]["a-1"]] == [
        [[0, "unresolved"], [1, "unresolved"]],
        [[0, "resolved"]],
    ]
    assert [[tries[1] for tries in run] for run in found["attempts"]["b-2"]] == [["failed"], []]
    for runs_asked, status in (
        ('["compare"]', 404),
        ('["compare", "x"]', 404),
        ("compare", 400),
        ("[1]", 400),
        ("[" * 3000, 400),
    ):
        assert get(runs, f"api/compare?runs={quote(runs_asked)}").status == status


def test_runs_come_and_go(runs: ViewServer, tmp_path: Path) -> None:
    assert len(get(runs, "api/runs").json["runs"]) == 2
    with RunFolder(tmp_path / "runs" / "new", run_info()) as folder:
        folder.progress({"running": 1, "total": 4, "eta": 9.0})
        folder.add(trajectory())
        new = get(runs, "api/runs").json["runs"][1]
        assert (new["name"], new["active"], new["graded"], new["planned"], new["eta"]) == ("new", True, 1, 4, 9.0)
        folder.add(trajectory("b-2", resolved=True))
        assert get(runs, "api/runs").json["runs"][1]["resolved"] == 0.5
    (tmp_path / "runs" / "new" / "progress.json").write_text("{")  # the copy of a run that was going on
    assert len(get(runs, "api/runs").json["runs"]) == 3
    (tmp_path / "runs" / "new" / "run.json").write_text("{}")
    listed = get(runs, "api/runs").json
    assert ([one["name"] for one in listed["runs"]], list(listed["problems"])) == (["compare", "one, two"], ["new"])
    (tmp_path / "runs" / "compare" / "run.json").unlink()
    assert [one["name"] for one in get(runs, "api/runs").json["runs"]] == ["one, two"]


def test_a_removed_folder_is_an_error(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", trajectory())
    with ViewServer(path) as server:
        (values,) = get(server, "api/rows").json["rows"]
        (path / "trajectories.jsonl").unlink()
        reply = get(server, f"api/episode?id={values[0]}")
        assert (reply.status, reply.json["error"]) == (500, "cannot read the run: No such file or directory")


def send(server: ViewServer, note: Any, *, origin: str | None = "", path: str = "api/notes") -> Reply:
    url = urlsplit(server.url)
    connection = http.client.HTTPConnection("127.0.0.1", url.port, timeout=20)
    headers = {} if origin is None else {"Origin": origin or f"http://{url.netloc}"}
    connection.request("POST", url.path + path, json.dumps(note).encode(), headers)
    reply = connection.getresponse()
    try:
        return Reply(reply.status, dict(reply.headers), reply.read().decode())
    finally:
        connection.close()


def test_notes_are_kept_beside_the_run(server: ViewServer, tmp_path: Path) -> None:
    note = {"task_id": "a-1", "attempt": 0, "turn": 2, "labels": ["odd"], "text": "Why é?"}
    assert send(server, note).status == 200
    assert get(server, "api/notes").json == [note]
    send(server, note | {"text": "Later", "turn": 0})
    send(server, note | {"text": "", "labels": []})
    assert [one["text"] for one in get(server, "api/notes").json] == ["Later"]
    (tmp_path / "run" / NOTES).write_bytes(b'{"version": 7}\n' + (tmp_path / "run" / NOTES).read_bytes())
    assert len(get(server, "api/notes").json) == 1
    assert "invalid note: turn" in send(server, note | {"turn": -1}).json["error"]


@pytest.mark.parametrize("origin", [None, "null", "http://evil.example", "http://127.0.0.1:1"])
def test_notes_from_other_pages_are_refused(server: ViewServer, tmp_path: Path, origin: str | None) -> None:
    assert send(server, {"task_id": "a-1", "attempt": 0, "text": "x"}, origin=origin).status == 403
    assert not (tmp_path / "run" / NOTES).exists()


def test_notes_are_bounded_and_have_one_address(server: ViewServer) -> None:
    assert send(server, {"text": "x" * 100_000}).status == 400
    assert send(server, {}, path="api/rows").status == 400


def test_a_note_that_cannot_be_saved_is_an_error(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", trajectory())
    (run / NOTES).mkdir()  # nobody can write there, root included
    with pytest.raises(UsageError, match=r"cannot save the note in .*make the folder writable"):
        write_note(notes_path(run), b'{"task_id": "a-1", "attempt": 0, "text": "x"}')


def test_other_methods_are_refused(server: ViewServer) -> None:
    url = urlsplit(server.url)
    connection = http.client.HTTPConnection("127.0.0.1", url.port, timeout=20)
    connection.request("PUT", f"{url.path}api/rows", body=b"x")
    assert connection.getresponse().status == 501
    connection.close()


def test_a_closed_connection_is_ignored(server: ViewServer, capsys: pytest.CaptureFixture[str]) -> None:
    url = urlsplit(server.url)
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", url.port or 0), timeout=20) as client:
            client.sendall(f"GET {url.path}api/rows HTTP/1.0\r\nHost: {url.netloc}\r\n\r\n".encode())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # RST instead of FIN
    assert get(server, "api/rows").status == 200
    assert "Traceback" not in capsys.readouterr().err


def test_a_port_in_use_and_a_missing_folder_are_errors(server: ViewServer, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot listen on port \d+"):
        ViewServer(tmp_path / "run", urlsplit(server.url).port or 0)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="not a run folder"):
        ViewServer(tmp_path / "empty")
    server.close()
    server.close()
