"""Log parsers: pure functions from a log to `{test id: status}`, found by name.

A parser keeps whole test ids. `grading.ids` matches the cut ids of published lists.
"""

from collections.abc import Callable

from ...registry import Registry
from .lines import LogParser
from .pytest import number_buttons, short_name, short_path

__all__ = ["LOG_PARSERS", "LogParser", "load_parser", "pytest_name", "runner_of"]

HARNESS_PREFIX = "parse_log_"
HERE = "swe_gym.grading.log_parsers"
PYTEST = f"{HERE}.pytest:parse_pytest"
PYTEST_OPTIONS = f"{HERE}.pytest:parse_pytest_options"
PYTEST_COLOURS = f"{HERE}.pytest:parse_pytest_colours"
MATPLOTLIB = f"{HERE}.pytest:parse_matplotlib"
DJANGO = f"{HERE}.unittest:parse_django"
SYMPY = f"{HERE}.unittest:parse_sympy"
R2E = f"{HERE}.pytest:parse_r2e"


def _in(module: str, *names: str, **functions: str) -> dict[str, str]:
    """The parsers of a module: the function of `name` is `parse_name`, unless given otherwise."""
    return {name: f"{HERE}.{module}:parse_{functions.get(name, name)}" for name in (*names, *functions)}


LOG_PARSERS = Registry[LogParser](
    "log parser",
    {
        # Python. Repositories are the names of SWE-bench's own parsers.
        **dict.fromkeys(("pytest", "pytest_nebo", "seaborn", "swesmith_pytest"), PYTEST),
        **dict.fromkeys(("astroid", "flask", "marshmallow", "pvlib", "pyvista", "sqlfluff", "xarray"), PYTEST),
        **dict.fromkeys(("pytest_options", "pydicom", "requests", "pylint"), PYTEST_OPTIONS),
        **dict.fromkeys(("pytest_v2", "astropy", "scikit", "sphinx"), PYTEST_COLOURS),
        **{"r2e": R2E, "matplotlib": MATPLOTLIB, "django": DJANGO, "sympy": SYMPY},
        # Other languages.
        **_in("native", "gotest", "cargo", "googletest", "ctest", "doctest", "jq", "redis"),
        **_in("native", micropython_test="micropython", cpp_v4="ctest"),
        **_in("jvm", "maven", "maven_classes", "ant", "gradle_tasks", gradle_custom="gradle"),
        **_in("javascript", "jest", "jest_json", "jest_suites", "calypso", "vitest", "mocha", "karma", "tap"),
        **_in("javascript", "chart_js", "marked", "p5js", immutable_js="jest_or_json", react_pdf="jest_files"),
        **_in("native", "minitest", "cucumber", "jekyll", "ruby_unit", "phpunit", rspec_transformed_json="rspec"),
        # Further names of SWE-rebench V2.
        **_in("jvm", "junit", sbt="junit", gradlew_v1="gradle_junit", r_junit="junit_nodes"),
        **_in("jvm", parse_logs_r_junit="junit_nodes", parse_combined_test_reports="junit_nodes"),
        **_in("rebench", java_mvn="maven_or_junit", parse_java_mvn="maven_or_junit", kotlin_junit="maven_or_junit"),
        **_in("rebench", parse_logs_kotlin_junit="maven_or_junit"),
        **_in("rebench", java_mvn_v2="maven_modules", parse_java_mvn_v2="maven_modules"),
        **_in("rebench", "js", "npx", js_2="js", js_3="js_tap", js_4="js_symbols", php_v1="pest"),
        **_in("rebench", "elixir", "julia", "scala", "swift", "csharp", "lein", r="testthat"),
        **_in("rebench", ruby_v1="ruby_suites", ruby_v2="ruby_letters", dart="dart_events", dart_v3="dart_lines"),
        **_in("rebench", lua_nvim="lua", parse_lua_nvim="lua", parse_lue_nvim="lua"),
        **_in("rebench", ocaml="alcotest", ocaml_v3="ocaml", cpp="cpp_nodes", cpp_v2="cpp_words"),
    },
    group="swe_gym.log_parsers",
)

RUNNERS = {
    **dict.fromkeys((PYTEST, PYTEST_COLOURS, PYTEST_OPTIONS, MATPLOTLIB, R2E), "pytest"),
    DJANGO: "django",
    SYMPY: "sympy",
}
"""Parser -> the Python runner whose logs it reads."""

NODE_NAMES: dict[str, Callable[[str], str]] = {PYTEST_OPTIONS: short_path, MATPLOTLIB: number_buttons, R2E: short_name}
"""Parser -> its name for the test of a node id; others keep the id."""


def load_parser(name: str) -> LogParser:
    """Load the parser of that name, with or without the prefix of SWE-bench's names ("parse_log_").

    Raises:
        UsageError: The name is unknown.
    """
    return LOG_PARSERS.load(name.removeprefix(HARNESS_PREFIX))


def runner_of(parser: object) -> str:
    """Return the Python runner whose logs a parser reads: "pytest", "django", "sympy"; empty for others."""
    return RUNNERS.get(_target(parser), "")


def pytest_name(parser: object) -> Callable[[str], str] | None:
    """Return the function from a node id to the parser's name of the test; None if it does not read pytest's logs."""
    return NODE_NAMES.get(_target(parser), str) if runner_of(parser) == "pytest" else None


def _target(parser: object) -> str:
    return LOG_PARSERS.get(parser.removeprefix(HARNESS_PREFIX), "") if isinstance(parser, str) else ""
