"""Facts about a source release: tests, requirements and changes."""

from pathlib import Path

import pytest

from swe_gym.curation import releases
from swe_gym.errors import TaskError

CHANGELOGS = {
    "markdown": """\
# Changes

## 1.10.0 (next)
- later

## 1.1.0 (2024-01-01)
- new thing
### Fixes
- fix 1.0.0

## 1.0.0
- old
""",
    "links": """\
# Changelog
## [1.1.0](https://example.org/1.0.0...1.1.0)
- new thing
## [1.0.0](https://example.org)
- old
""",
    "underlined": """\
Changes
=======

Version 1.1.0
-------------

- new thing

Version 1.0.0
-------------
- old
""",
    "bare": "1.1.0\n- new thing\n- more\n\n1.0.0\n- old\n",
    "starred": "History\n=======\n1.1.0 *2026-09-23*\n  * new thing\n\n1.0.0 *2025-01-01*\n  * old\n",
    "prefixed": "v1.1.0 - 2024\n=============\nnew thing\n\nv1.0.0 - 2023\n=============\nold\n",
}


def tree_of(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "patterns", "targets"),
    [
        (["a.py", "tests/test_a.py", "tests/sub/data.json"], ("tests/*",), ("tests",)),
        (["pkg/tests/unit/test_a.py", "pkg/sub/test/a_test.py"], ("pkg/sub/test/*", "pkg/tests/*"),
         ("pkg/sub/test", "pkg/tests")),
        (["tests.py", "a.py"], ("tests.py",), ("tests.py",)),
        (["test_[a].py"], ("test_[[]a].py",), ("test_[a].py",)),
        (["testing/test_a.py", "conftest.py"], ("conftest.py", "testing/*"), ("testing",)),
        (["pkg/testing/tests/test_a.py", "pkg/testing/api.py"], ("pkg/testing/tests/*",), ("pkg/testing/tests",)),
        (["django/test/client.py", "tests/a/tests.py"], ("tests/*",), ("tests",)),
        (["tests/test_a.py", "compliance/test_server.py"], ("tests/*",), ("tests",)),
    ],
)  # fmt: skip
def test_tests_are_found_by_convention(files: list[str], patterns: tuple[str, ...], targets: tuple[str, ...]) -> None:
    layout = releases.find_tests(files)
    assert (layout.patterns, layout.targets) == (patterns, targets)


def test_a_layout_contains_its_files() -> None:
    layout = releases.find_tests(["src/a.py", "tests/test_a.py", "conftest.py"])
    assert "tests/deep/er/data.bin" in layout
    assert "conftest.py" in layout
    assert "src/a.py" not in layout
    assert "src/conftest.py" not in layout


def test_a_release_without_tests_is_rejected() -> None:
    with pytest.raises(TaskError, match="holds no tests"):
        releases.find_tests(["setup.py", "pkg/contest.py", "docs/testing.rst"])


def test_files_of_packaging_tools_are_ignored(tmp_path: Path) -> None:
    tree_of(tmp_path, dict.fromkeys(("a.py", "PKG-INFO", "src/a.egg-info/SOURCES.txt", ".git/config"), ""))
    (tmp_path / "link").symlink_to("a.py")
    assert releases.list_files(tmp_path) == ["a.py", "link"]


@pytest.mark.parametrize(
    ("files", "root"),
    [
        (["src/my_pkg/__init__.py"], "src"),
        (["lib/my_pkg.py"], "lib"),
        (["my_pkg/__init__.py", "src/ext.c"], ""),
        (["lib/yaml/__init__.py", "My.Pkg.egg-info/top_level.txt"], "lib"),
    ],
)
def test_the_folder_of_the_code_is_found(tmp_path: Path, files: list[str], root: str) -> None:
    tree_of(tmp_path, dict.fromkeys(files, "yaml\n"))
    assert releases.find_source_root(tmp_path, "My.Pkg") == root


def needs(tmp_path: Path, files: dict[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return releases.test_requirements(tree_of(tmp_path, files), "my-pkg")


def test_a_release_without_metadata_needs_nothing(tmp_path: Path) -> None:
    assert needs(tmp_path, {"setup.py": ""}) == ((), ())
    assert needs(tmp_path, {"pyproject.toml": "]", "tox.ini": "deps"}) == ((), ())


def test_metadata_lists_requirements_and_extras(tmp_path: Path) -> None:
    info = (
        "Metadata-Version: 2.1\nName: my-pkg\nRequires-Dist: attrs>=20\n"
        "Requires-Dist: tomli ; python_version < '3.11'\n"
        "Requires-Dist: pytest; extra == 'test'\nProvides-Extra: test\nProvides-Extra: docs\n\nRequires-Dist: no\n"
    )
    assert needs(tmp_path, {"PKG-INFO": info}) == (("test",), ("attrs>=20", "tomli ; python_version < '3.11'"))


def test_dependency_groups_may_include_each_other(tmp_path: Path) -> None:
    text = (
        '[dependency-groups]\ntests = ["pytest>=8", {include-group = "more"}]\ndev = ["ruff"]\n'
        'more = ["attrs", {include-group = "tests"}]\n'
    )
    assert needs(tmp_path, {"pyproject.toml": text})[1] == ("pytest>=8", "attrs")


def test_development_groups_count_if_there_are_no_test_groups(tmp_path: Path) -> None:
    assert needs(tmp_path, {"pyproject.toml": '[dependency-groups]\ndev = ["ruff", "pytest"]'})[1] == ("ruff", "pytest")
    assert needs(tmp_path, {"requirements-test.txt": "pytest"})[1] == ("pytest",)


def test_tables_of_tools_are_read(tmp_path: Path) -> None:
    text = (
        '[tool.hatch.envs.hatch-test]\nextra-dependencies = ["freezegun"]\n'
        '[tool.poetry.group.test.dependencies]\npytest-mock = "^3"\n'
    )
    assert needs(tmp_path, {"pyproject.toml": text})[1] == ("freezegun", "pytest-mock")
    tox = "[testenv]\ndeps =\n    pytest\n    py27: mock\n    -r other.txt\n    {env:X}\n"
    assert needs(tmp_path, {"tox.ini": tox, "pyproject.toml": ""})[1] == ("pytest",)


def test_requirement_files_are_read_with_what_they_include(tmp_path: Path) -> None:
    files = {
        "requirements/test.txt": "-r base.in\n"
        "pytest==8.0 \\\n  --hash=sha256:00  # why\n-e .\n./local\nMy_Pkg[all]\n# no\n",
        "requirements/base.in": "attrs # yes\n-r test.txt\n-c constraints.txt\ngit+https://example.org/x.git\n",
    }
    assert needs(tmp_path, files)[1] == ("attrs", "pytest==8.0")


def test_conflicting_versions_are_left_to_pip(tmp_path: Path) -> None:
    files = {
        "requirements-test-38.txt": "pytest==6\nattrs==1\nzipp==1; python_version<'3.8'\n",
        "requirements-test-39.txt": "pytest==8\nattrs==1\nzipp==2; python_version>='3.8'\n",
    }
    assert needs(tmp_path, files)[1] == (
        "pytest", "attrs==1", "zipp==1; python_version<'3.8'", "zipp==2; python_version>='3.8'",
    )  # fmt: skip


@pytest.mark.parametrize("style", CHANGELOGS)
def test_the_changes_of_a_release_are_cut_out_of_its_changelog(tmp_path: Path, style: str) -> None:
    tree = tree_of(tmp_path, {"docs/CHANGES.rst": CHANGELOGS[style]})
    changes = releases.changes_between(tree, ["docs/CHANGES.rst"], "1.0.0", "1.1.0")
    assert "1.1.0" in changes.splitlines()[0]
    assert "new thing" in changes
    assert "old" not in changes
    assert "later" not in changes


def test_changes_of_all_releases_in_between_are_included(tmp_path: Path) -> None:
    tree = tree_of(tmp_path, {"NEWS": "3.0\n- c\n\n2.0\n- b\n\n1.0\n- a\n"})
    assert releases.changes_between(tree, ["NEWS"], "1.0", "3.0") == "3.0\n- c\n\n2.0\n- b"
    assert releases.changes_between(tree, ["NEWS"], "0.9", "3.0") == "3.0\n- c"
    assert releases.changes_between(tree, ["NEWS"], "0.9", "03.0.0") == "3.0\n- c"


def test_without_a_changelog_there_are_no_changes(tmp_path: Path) -> None:
    tree = tree_of(tmp_path, {"README.md": "1.1.0\n", "CHANGES.md": "1.1.0.post1\n- x\n", "news.py": ""})
    assert releases.changes_between(tree, ["README.md", "CHANGES.md", "news.py"], "1.0.0", "1.1.0") == ""
