"""Python in README, docs and notebook runs, commands exist, links have targets, translations are complete."""

import contextlib
import io
import json
import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from notebook_page import page as page_of
from test_architecture import LAYERS

import swe_gym
from swe_gym import SandboxSpec
from swe_gym.tasks.file import write_tasks
from swe_gym.toml import parse_pairs
from swe_gym.types import Task
from swe_gym.viewer.report import write_curves
from swe_gym_command.app import app, load_command

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").rglob("*.md"))
TEXTS = [*ROOT.glob("*.md"), *PAGES]
INCLUDE = re.compile(r'^ *--8<-- "(.*)"$', re.MULTILINE)


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(path: Path, language: str) -> Iterator[str]:
    """Yield the code blocks of a page, with included files."""
    pattern = rf"^( *)```{language}\n(.*?)^\1```$"
    for match in re.finditer(pattern, path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        yield INCLUDE.sub(lambda include: (ROOT / include[1]).read_text(), textwrap.dedent(match[2]))


# --- Python -------------------------------------------------------------------------------------------------


def test_python_compiles() -> None:
    for path in TEXTS:
        for block in blocks(path, "python"):
            compile(block, name(path), "exec")


@pytest.mark.parametrize(
    ("page", "shown"),
    [
        ("README.md", ["0.0 submitted True"]),
        ("docs/index.md", []),
        ("docs/quickstart.md", ["reward 1.0: 5 of 5", " submitted 0.0\n"]),
        ("docs/vector.md", ["[1 1 1 1]"]),
        ("docs/wrappers.md", ["['system', 'user'] True", "(2, 256) Discrete(4) [[1, 1, 1, 1], [1, 1, 1, 1]]"]),
        ("docs/environments/index.md", ["[exit code 0]"]),
        ("docs/sandboxes/alone.md", ["42 0\nprint(6 * 7)\n", "['1', '42']\n", "ready\n"]),
    ],
)
def test_python_runs(page: str, shown: list[str], adder: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a page run in order, beside a project and a task file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["example.py"])
    (tmp_path / "my_project").mkdir()
    write_tasks([adder], tmp_path / "tasks.jsonl")
    names: dict[str, Any] = {"__name__": "__main__"}
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        for block in blocks(ROOT / page, "python"):
            exec(compile(block, page, "exec"), names)
    if "env" in names:
        names["env"].close()
    for text in shown:
        assert text in output.getvalue()


def test_the_notebook_prints_what_it_shows() -> None:
    """Its cells run in order, and print the outputs that it was saved with."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in json.loads((ROOT / "docs/first_episode.ipynb").read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                exec("".join(cell["source"]), names)
            assert output.getvalue() == "".join(line for shown in cell["outputs"] for line in shown["text"]), cell["id"]


def test_the_page_of_the_notebook_is_up_to_date() -> None:
    """After a change: python benchmarks/notebook_page.py docs/first_episode.ipynb docs/first_episode.md."""
    assert (ROOT / "docs/first_episode.md").read_text(encoding="utf-8") == page_of(ROOT / "docs/first_episode.ipynb")


# --- translations -------------------------------------------------------------------------------------------


def code(page: str) -> list[str]:
    """The code of a page without its comments."""
    found = re.findall(r"^```(.*?)^```$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [re.sub(r" *# .*", "", block) for block in found]


@pytest.mark.parametrize("page", ["README", "docs/quickstart"])
def test_a_chinese_page_has_the_code_of_the_english_one(page: str) -> None:
    assert code(f"{page}.zh-CN.md") == code(f"{page}.md")


# --- commands -----------------------------------------------------------------------------------------------


def commands(path: Path) -> Iterator[list[str]]:
    """Yield every `swe-gym ...` of a page, in shell blocks and in text."""
    lines = [line for block in blocks(path, "bash") for line in block.replace("\\\n", " ").splitlines()]
    lines += re.findall(r"`(swe-gym [^`]+)`", path.read_text(encoding="utf-8"))
    for line in lines:
        for command in re.split(r"&&|\|", line):
            words = shlex.split(command, comments=True)
            if words and words[0].rpartition("/")[2] == "swe-gym":
                yield words[1:]


def check_command(words: list[str]) -> None:
    """Find the command of the words, and check its options."""
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        assert words, "a sub-command is missing"
        option, equals, _ = words[0].partition("=")
        if option.startswith("-"):
            if not equals:
                break
            assert option in {name for parameter in command.params for name in parameter.opts}
            words = words[1:]
            continue
        assert words[0] in command.commands, words
        at_top = command.name == "swe-gym"
        command, words = load_command(words[0]) if at_top else command.commands[words[0]], words[1:]
    known = {option for parameter in command.params for option in parameter.opts} | {"-h", "--help"}
    assert {word.partition("=")[0] for word in words if word.startswith("-")} <= known, words


def test_commands_exist() -> None:
    for words in {tuple(words) for path in TEXTS for words in commands(path)}:
        check_command(list(words))


def test_commands_are_found_and_checked() -> None:
    assert ["tasks", "new", "tasks.jsonl", "--from-pypi", "sqlparse", "0.5.1", "0.5.2"] in list(
        commands(ROOT / "README.md")
    )
    for wrong in (["tsks"], ["tasks", "lst"], ["validate", "--nothing"]):
        with pytest.raises(AssertionError):
            check_command(wrong)


def test_the_test_command_of_the_readme_is_marked() -> None:
    """`.ci/run` and the workflows read it."""
    assert re.search(r"<!-- tests -->\n```bash\n[^`]*pytest\n```", (ROOT / "README.md").read_text())


# --- links --------------------------------------------------------------------------------------------------


def test_relative_links_have_targets() -> None:
    for path in TEXTS:
        text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if not re.match(r"[a-z]+:|#", target):
                assert (path.parent / target.partition("#")[0]).exists(), (name(path), target)


def test_every_page_is_in_the_navigation() -> None:
    listed = re.findall(r"^ +- .*?([\w/.-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == [str(page.relative_to(ROOT / "docs")) for page in PAGES]


def test_the_faq_has_the_words_that_people_search_for() -> None:
    text = (ROOT / "docs/faq.md").read_text().lower()
    words = "gpt claude anthropic trl verl cuda gpu proxy mirror wsl macos windows disk timeouts offline cost resume"
    assert [word for word in words.split() if word not in text] == []


def test_sandbox_options_of_pages_are_valid() -> None:
    for path in TEXTS:
        for quoted, plain in re.findall(r"--sandbox-option (?:'([^']*)'|([^\s`]+))", path.read_text(encoding="utf-8")):
            if (quoted or plain) != "NAME=VALUE":
                SandboxSpec.model_validate(parse_pairs("--sandbox-option", [quoted or plain]))


def test_every_public_name_has_a_reference() -> None:
    shown = {name for page in PAGES for name in re.findall(r"^::: [\w.]*\.(\w+)$", page.read_text(), re.MULTILINE)}
    assert set(swe_gym.__all__) - {"__version__"} <= shown


def test_the_drawing_of_the_package_shows_every_layer() -> None:
    boxes = re.findall(r"subgraph .*?\n(.*?)\n    end", (ROOT / "docs/architecture.md").read_text(), re.DOTALL)
    drawn = [{package for package in re.findall(r"(\w+)\[", box) if f"swe_gym.{package}" in LAYERS} for box in boxes]
    layers = sorted({at for name, at in LAYERS.items() if name != "swe_gym.__main__"}, reverse=True)
    expected = [{name.removeprefix("swe_gym.") for name, at in LAYERS.items() if at == layer} for layer in layers]
    assert [box for box in drawn if box] == expected


@pytest.mark.slow
def test_the_learning_curves_are_drawn_from_the_logs_beside_the_example(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    runs = [ROOT / "examples/vllm_ppo/cpu_runs" / run for run in ("rloo-0", "rloo-1", "gae-0")]
    write_curves(runs, tmp_path / "curves.svg")
    assert drawn(tmp_path / "curves.svg") == drawn(ROOT / "docs/images/micro-cpu.svg")


def drawn(path: Path) -> tuple[list[str], list[list[int]]]:
    """The words of a drawing, and the heights of its curves' points in hundredths of each curve's height."""
    text = path.read_text()
    curves = []
    for data in re.findall(r'<path d="(M[^"]*)" clip-path', text):
        heights = [float(y) for y in re.findall(r"[ML] \S+ (\S+)", data)]
        whole = max(heights) - min(heights) or 1.0
        curves.append([round(100 * (y - min(heights)) / whole) for y in heights])
    return re.findall(r"<text[^>]*>([^<]*)</text>", text), curves
