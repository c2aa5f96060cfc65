"""Log parsers on small logs of each kind, and on any text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_gym.errors import UsageError
from swe_gym.grading.ids import match_tests
from swe_gym.grading.log_parsers import LOG_PARSERS, load_parser, pytest_name
from swe_gym.grading.log_parsers.lines import without_end
from swe_gym.grading.log_parsers.rebench import DURATION
from swe_gym.types import TestStatus

P, F, E, S = TestStatus.PASSED, TestStatus.FAILED, TestStatus.ERROR, TestStatus.SKIPPED
XF, XP, MISSING = TestStatus.XFAILED, TestStatus.XPASSED, TestStatus.MISSING

PARSERS = sorted({target: name for name, target in LOG_PARSERS.items()}.values())
"""A name of each parser."""

PYTEST = """\
=========================== short test summary info ============================
PASSED tests/test_a.py::test_plain
PASSED tests/test_a.py::test_blank[a b]
PASSED tests/test_a.py::test_dash[a - b]
SKIPPED [2] tests/test_a.py:12: no network
XFAIL tests/test_a.py::test_known - upstream
XPASS tests/test_a.py::test_cured
ERROR tests/test_b.py - ModuleNotFoundError: No module named 'x'
ERROR tests/test_a.py::test_teardown - ValueError
ERROR    root:test_a.py:3 a log message of a test
FAILED tests/test_a.py::test_dash[x - y] - assert 1 == 2 - or so
FAILED tests/test_a.py::test_newline[a\\nb] - E...
===== 2 failed, 3 passed, 2 skipped, 1 xfailed, 1 xpassed, 2 errors in 1s =====
"""
VERBOSE = """\
tests/test_a.py::test_one PASSED                                         [ 33%]
tests/test_a.py::test_two[a b] FAILED                                    [ 66%]
tests/test_a.py::test_three SKIPPED (why not)                            [ 70%]
[gw1] [ 90%] PASSED tests/test_a.py::test_four
tests/test_a.py::test_five PASSED
\x1b[32mPASSED\x1b[0m tests/test_a.py::\x1b[1mtest_six\x1b[0m
PASSED                                                                   [100%]
"""
DJANGO = """\
Testing against Django installed in '/testbed/django'
Applying sites.0001_initial... OK
test_plain (app.tests.ATests) ... ok
test_docstring (app.tests.ATests)
It does what it says. ... ok
test_skipped (app.tests.ATests) ... skipped 'no browser'
test_known (app.tests.ATests) ... expected failure
test_noise (app.tests.ATests) ... System check identified no issues (0 silenced).
ok
test_noisy_failure (app.tests.ATests) ... printed
FAIL
test_subtests (app.tests.ATests) ... test_after (app.tests.ATests) ... ok
test_bad_docstring (app.tests.ATests)
It fails. ... FAIL
test_cut_short (app.tests.ATests) ...
======================================================================
ERROR: test_subtests (app.tests.ATests) (number=1)
----------------------------------------------------------------------
Traceback (most recent call last):
======================================================================
FAIL: test_bad_docstring (app.tests.ATests)
It fails.
----------------------------------------------------------------------
Ran 9 tests in 0.1s

OK
"""
SYMPY = """\
sympy/core/tests/test_a.py[5]
test_one ok
test_two F
test_three E
test_slow f
test_last ok                                                            [FAIL]
sympy/core/tests/test_b.py[1]
test_two ok                                                               [OK]

________________________________________________________________________________
________________ sympy/core/tests/test_a.py:test_two ________________
AssertionError
"""
DOCTEST = """\
<doctest binary="t"><TestSuite>
  <TestCase name="a &lt;b&gt;" filename="t.cpp" line="1">
    <SubCase name="good" filename="t.cpp" line="2">
      <Expression success="true" type="CHECK" filename="t.cpp" line="3">
      </Expression>
    </SubCase>
    <SubCase name="bad" filename="t.cpp" line="4">
      <Expression success="false" type="CHECK" filename="t.cpp" line="5">
      </Expression>
    </SubCase>
  </TestCase>
</TestSuite></doctest>
"""
KARMA = """\
  not yet
START:
Starting browser ChromeHeadless
  render()
    ✔ should render
    ✖ should fail
    deeper
      ✔ should nest
SUMMARY:
✔ 2 tests completed
"""
CALYPSO = """\
+ ./node_modules/.bin/jest client
  selectors
    #one()
      ✓ works (5ms)
      ✕ breaks
  reducer
    ✓ reduces
  ● selectors: breaks
      ✓ no test, but what a failure shows
"""
P5JS = """\
  1 failing

  1) p5.Vector
       cross
         should return neither v1 nor v2:

      AssertionError: expected 1
"""
JUNIT = """\
<?xml version="1.0"?>
<testsuites><testsuite name="s">
  <testcase name="adds &quot;x&quot;" classname="a.B" time="0.1"/>
  <testcase classname="a.B" name="breaks > badly"><failure message="no">&lt;trace></failure></testcase>
  <testcase classname="a.B" name="errs"><error/></testcase>
  <testcase classname="a.B" name="waits"><skipped/></testcase>
  <testcase name="cut" classname="a.B">
"""
JULIA = """\
Test Summary: | Pass  Fail  Error  Broken  Total  Time
all           |    3     1      1       1      6  1.2s
  good        |    2                            2  0.1s
  bad         |          1                      1  0.1s
  known       |                         1       1  0.1s
Test Summary: | Pass  Total
quick         |   12     12
"""
DART = """\
{"test":{"id":1,"name":"loading a_test.dart"},"type":"testStart"}
{"testID":1,"result":"success","hidden":true,"type":"testDone"}
{"test":{"id":3,"name":"adds"},"type":"testStart"}
{"testID":3,"result":"success","skipped":false,"hidden":false,"type":"testDone"}
[{"test":{"id":4,"name":"breaks"},"type":"testStart"},{"testID":4,"result":"failure","type":"testDone"}]
{"test":{"id":5,"name":"never ends"},"type":"testStart"}
"""
SMALL = {
    "gotest": (
        "=== RUN   TestA\n    --- PASS: TestA/sub_(x) (0.00s)\n--- FAIL: TestB (1.2s)\n--- SKIP: TestC (0s)\n",
        {"TestA/sub_(x)": P, "TestB": F, "TestC": S},
    ),
    "cargo": (
        "test a::b ... ok\ntest c ... FAILED\ntest d ... ignored\n"
        "test src/x.rs - y (line 3) ... ok\ntest result: ok.\n",
        {"a::b": P, "c": F, "d": S, "src/x.rs - y (line 3)": P},
    ),
    "googletest": (
        "9: [ RUN      ] A.b\n9: [       OK ] A.b (0 ms)\n[  FAILED  ] A.c/0, where GetParam() = (1, 2) (3 ms)\n"
        "[  PASSED  ] 1 test.\n",
        {"A.b": P, "A.c/0": F},
    ),
    "ctest": (
        " 1/3 Test  #1: a_test ......   Passed    0.01 sec\n 2/3 Test  #2: b ...***Failed  0.1 sec\n"
        "3/3 Test #3: c ....***Exception: SegFault  0.05 sec\n",
        {"a_test": P, "b": F, "c": E},
    ),
    "doctest": (DOCTEST, {"a <b> > good": P, "a <b> > bad": F}),
    "jq": ("PASS: tests/a\nFAIL: b\nSKIP: c\nXFAIL: d\n# PASS:  1\n", {"tests/a": P, "b": F, "c": S, "d": S}),
    "redis": (
        "[ok]: XTRIM with ~ (12 ms)\n[err]: LPOP (count) in tests/unit/a.tcl\n[skip]: big\n",
        {"XTRIM with ~": P, "LPOP (count)": F, "big": S},
    ),
    "micropython_test": (
        "pass  basics/a.py\nFAIL  basics/b.py\nskip  c.py\n",
        {"basics/a.py": P, "basics/b.py": F, "c.py": S},
    ),
    "maven": (
        "[INFO] BUILD SUCCESS\n+ mvnd test -Dtest=a.B#c\n[INFO] BUILD SUCCESS\n+ mvnd test -Dtest=a.B#d\n"
        "+ mvnd test -Dtest=a.B#e\n[INFO] BUILD FAILURE\n[INFO] BUILD SUCCESS\n+ x -Dtest=f\n",
        {"a.B#c": P, "a.B#d": F, "a.B#e": P},
    ),
    "maven_classes": (
        "[INFO] Tests run: 3, Failures: 0, Errors: 0, Skipped: 0, Time elapsed: 0.1 s - in a.Good\n"
        "[ERROR] Tests run: 3, Failures: 1, Errors: 0, Skipped: 0, Time elapsed: 0.2 s <<< FAILURE! -- in a.Bad\n"
        "[ERROR] a.Bad.method -- Time elapsed: 0 s <<< ERROR!\n"
        "[WARN] Tests run: 2, Failures: 0, Errors: 0, Skipped: 2, Time elapsed: 0 s - in a.None\n"
        "[INFO] Tests run: 0, Failures: 0, Errors: 0, Skipped: 0, Time elapsed: 0 s - in a.Empty\n"
        "Running a.Old\nprinted\nTests run: 1, Failures: 0, Errors: 0, Skipped: 0, Time elapsed: 0.01 sec\n"
        "Running a.Ill\nTests run: 1, Failures: 0, Errors: 1, Skipped: 0, Time elapsed: 1 sec <<< FAILURE!\n"
        "[INFO] Tests run: 8, Failures: 1, Errors: 0, Skipped: 2\n",
        {"a.Good": P, "a.Bad": F, "a.Bad.method": E, "a.None": S, "a.Empty": S, "a.Old": P, "a.Ill": E},
    ),
    "ant": (" [junit] [PASS] A.java(x.T)\n [junit] [FAIL] B\n [junit] [ERR] C\n", {"A.java(x.T)": P, "B": F, "C": E}),
    "gradle_custom": (
        "> Task :test\na.B > c PASSED\na.B > d FAILED\na.B > e\nWARNING: noise\nPASSED\n",
        {"a.B > c": P, "a.B > d": F, "a.B > e": P},
    ),
    "gradle_tasks": (
        "> Task :compileJava UP-TO-DATE\n> Task :lib:test FAILED\n> Task :a\n> Task :b NO-SOURCE\na.B > c() PASSED\n",
        {"compileJava": P, "lib:test": F, "a": P, "b": S, "a.B > c()": P},
    ),
    "jest": (
        "  ✓ adds 2 (5 ms)\n  ✕ breaks (1.5 s)\n  ○ skipped later\n",
        {"adds 2": P, "breaks": F, "skipped later": S},
    ),
    "jest_suites": (
        "PASS test/a.test.js (5.1 s)\n  ✓ adds (5 ms)\n  ✓ adds (twice)\nFAIL b.test.js\n  ✕ breaks\n  ○ waits\n",
        {
            **{"test/a.test.js": P, "test/a.test.js:adds": P, "test/a.test.js:adds (twice)": P},
            **{"b.test.js": F, "b.test.js:breaks": F, "b.test.js:waits": S},
        },
    ),
    "jest_json": ("[PASSED] a > b\n[FAILED] c\n", {"a > b": P, "c": F}),
    "immutable_js": ("[PASSED] a > b\n ✓ c (1 ms)\n", {"a > b": P, "c": P}),
    "react_pdf": ("PASS packages/a.test.js (5.1 s)\nFAIL b.test.js\n", {"packages/a.test.js": P, "b.test.js": F}),
    "vitest": (
        " ✓ a.spec.ts > b > c 12ms\n × a.spec.ts > d\n ↓ a.spec.ts > e [skipped]\n",  # noqa: RUF001  vitest's cross
        {"a.spec.ts > b > c": P, "a.spec.ts > d": F, "a.spec.ts > e": S},
    ),
    "mocha": ("  ✔ works (20ms)\n  - later\n  1) breaks\n", {"works": P, "later": S, "breaks": F}),
    "tap": ("ok 1 a b\nnot ok 2 - c\n1..2\n# tests 2\n", {"a b": P, "- c": F}),
    "karma": (
        KARMA,
        {"render() > should render": P, "render() > should fail": F, "render() > deeper > should nest": P},
    ),
    "calypso": (
        CALYPSO,
        {"selectors - #one() - works": P, "selectors - #one() - breaks": F, "reducer - reduces": P},
    ),
    "chart_js": ("Chrome 100.0.1 (Linux x86_64) Legend calls FAILED\nChrome 1 (L) ok\n", {"Legend calls": F}),
    "marked": ("1) New a should pass\n  Message:\n", {"New a should pass": F}),
    "p5js": (P5JS, {"p5.Vector:cross:should return neither v1 nor v2": F}),
    "minitest": (
        "TestA#test_b: c d. = 0.01 s = .\nTestA#test_e = 0.1 s = F\nTestA#test_f. = 0.00 s = E\n",
        {"TestA#test_b: c d": P, "TestA#test_f": E},
    ),
    "cucumber": (
        "features/a.feature:3  Scenario: b .....\nfeatures/a.feature:9  Scenario: c ..F--\n",
        {"features/a.feature:3  Scenario: b": P, "features/a.feature:9  Scenario: c": F},
    ),
    "jekyll": ("features/a.feature:3  Scenario: b ..\n", {"features/a.feature:3  Scenario: b": P}),
    "ruby_unit": (
        "  test_a:\t.: (0.001)\n  test: b c[d]:\tF\n===\n  test_e:\tE\n  test_f:\tO\n",
        {"test_a": P, "b c[d]": F, "test_e": E, "test_f": S},
    ),
    "rspec_transformed_json": ("a b - passed\nc - ./x.rb[1:1] - failed\n", {"a b": P, "c - ./x.rb[1:1]": F}),
    "js": (
        "  ✔ works (20ms)\n  - later\n  1) breaks\n\n  1) suite\n       breaks:\n",
        {"works": P, "later": S, "breaks": F, "suite": F},
    ),
    "npx": ("  ✔ works (20ms)\n  1) breaks (a module)\n", {"works": P, "breaks": F}),
    "js_3": (
        "ok 1 - a.js # time=3ms {\n  ok 1 - one\n  not ok 2 - two (3ms)\n}\nok 2 - one\n",
        {"a.js": P, "a.js :: one": P, "a.js :: two": F, "one": P},
    ),
    "js_4": (
        " ✓ a.test.ts (5 tests) 12ms\n ✔ [unit]: one\n × two 5 ms\n ✕ three\n ○ later\n",  # noqa: RUF001  a cross
        {"a.test.ts (5 tests)": P, "one": P, "two": F, "three": F, "later": S},
    ),
    "php_v1": (
        "  ✓ it adds   0.03s\n  ⨯ it breaks   0.1s\n  - it waits\n",  # noqa: RUF001  Pest's cross
        {"it adds": P, "it breaks": F, "it waits": S},
    ),
    "java_mvn": (
        "[INFO] Running a.Good\n"
        "[INFO] Tests run: 3, Failures: 0, Errors: 0, Skipped: 0, Time elapsed: 1 s - in a.Good\n"
        "[INFO] Tests run: 3, Failures: 0, Errors: 0, Skipped: 1, Time elapsed: 1 s - in a.Part\nRunning a.Old\n"
        "Tests run: 1, Failures: 0, Errors: 1, Skipped: 0, Time elapsed: 1 sec\nTests run: 7, Failures: 0, Errors: 1,"
        " Skipped: 1\n",
        {"a.Good": P, "a.Part": S, "a.Old": E},
    ),
    "java_mvn_v2": (
        "[INFO] Tests run: 3, Failures: 0, Errors: 0, Skipped: 1\n[INFO] An App - Core ....... SUCCESS [  0.8 s]\n"
        "[INFO] An App - Net ....... FAILURE [  1.2 s]\n[INFO] An App - Web ....... SKIPPED\n",
        {"__suite__": P, "An App - Core": P, "An App - Net": F, "An App - Web": S},
    ),
    "junit": (JUNIT, {"a.B adds &quot;x&quot;": P, "a.B breaks > badly": F, "a.B errs": E, "a.B waits": S}),
    "gradlew_v1": (JUNIT, {'adds "x" (a.B)': P, "breaks > badly (a.B)": F, "errs (a.B)": E, "waits (a.B)": S}),
    "r_junit": (JUNIT, {'a.B::adds "x"': P, "a.B::breaks > badly": F, "a.B::errs": E, "a.B::waits": S}),
    "ruby_v1": (
        "ATest\n  test_one          PASS (0.02s)\n  test_two          ERROR (0.10s)\nBTest\n  test_one   SKIP\n",
        {"ATest::test_one": P, "ATest::test_two": E, "BTest::test_one": S},
    ),
    "ruby_v2": (
        "ATest#test_a = 0.02 s = .\nATest#test_b: c = d = 0.1 s = F\n",
        {"ATest#test_a": P, "ATest#test_b: c = d": F},
    ),
    "elixir": (
        "  * test adds [L#3]\r  * test adds (1.2ms) [L#3]\n  * test breaks (a) [L#9]\n"
        "  * test waits (skipped) [L#4]\n\n  1) test breaks (a) (A.BTest)\n",
        {"adds": P, "breaks (a)": F, "waits": S},
    ),
    "julia": (JULIA, {"all": E, "good": P, "bad": F, "quick": P}),
    "scala": (
        "[info] - adds (12 milliseconds)\n[info] - breaks *** FAILED *** (3 milliseconds)\n"
        "[info] - waits !!! IGNORED !!!\n",
        {"adds": P, "breaks": F, "waits": S},
    ),
    "swift": (
        "Test Case 'ATests.testA' started\nTest Case 'ATests.testA' passed (0.001 seconds)\n"
        "Test Case 'ATests.testB' failed (0.1 seconds)\n",
        {"ATests.testA": P, "ATests.testB": F},
    ),
    "csharp": (
        '  Passed A.B(x: "y") [2 ms]\n  Failed A.C [3 ms]\n  Skipped A.D\nPassed!  - Failed: 0\n'
        "[xUnit.net 00:00:01.23]     A.E [FAIL]\n",
        {'A.B(x: "y")': P, "A.C": F, "A.D": S, "A.E": F},
    ),
    "dart": (DART, {"adds": P, "breaks": F}),
    "dart_v3": (
        "00:00 +0: loading /a_test.dart\n00:01 +1: /a_test.dart: adds\n00:02 +1 -1: /a_test.dart: breaks: so [E]\n"
        "00:03 +1 -2: loading /b_test.dart [E]\n",
        {"/a_test.dart: adds": P, "/a_test.dart: breaks: so": F, "/b_test.dart": E},
    ),
    "r": ("✔ |         60 | adds\n✖ | 2 2      9 | breaks [1.2s]\n", {"adds": P, "breaks": F}),
    "lein": (
        "lein test a.core\nlein test a.bad\nFAIL in (x) (bad.clj:3)\nlein test :only a.bad/x\n",
        {"a.core": P, "a.bad": F},
    ),
    "lua_nvim": ("Success\t||\tone two\t\nFail\t||\tthree\t\nSuccess: \t1\n", {"one two": P, "three": F}),
    "ocaml": ("  [OK]          a suite          0   one.\n", {"a suite          0   one.": P}),
    "ocaml_v3": ("[OK] a case\n[KO] another\n[INFO] x\n", {"a case": P, "another": F}),
    "cpp": ("t.py::A::test_a PASSED [ 10%]\nt.py::test_b FAILED\n", {"test_a": P, "test_b": F}),
    "cpp_v2": ("Test a b                   passed\nTest c    failed\n", {"a b": P, "c": F}),
    "phpunit": (
        "Round (Tests\\Carbon\\Round)\n ✔ Floor year\n ✘ Round  [1.34 ms]\n ↩ Later\n",
        {"Round > Floor year": P, "Round > Round": F, "Round > Later": S},
    ),
}


def test_pytest_summary_keeps_whole_ids() -> None:
    assert load_parser("pytest")(PYTEST) == {
        "tests/test_a.py::test_plain": P,
        "tests/test_a.py::test_blank[a b]": P,
        "tests/test_a.py::test_dash[a - b]": P,
        "tests/test_a.py::test_known": XF,
        "tests/test_a.py::test_cured": XP,
        "tests/test_b.py": E,
        "tests/test_a.py::test_teardown": E,
        "tests/test_a.py::test_dash[x - y]": F,
        "tests/test_a.py::test_newline[a\\nb]": F,
    }


def test_pytest_verbose_lines_workers_and_colours() -> None:
    assert load_parser("parse_log_scikit")(VERBOSE) == {
        "tests/test_a.py::test_one": P,
        "tests/test_a.py::test_two[a b]": F,
        "tests/test_a.py::test_three": S,
        "tests/test_a.py::test_four": P,
        "tests/test_a.py::test_five": P,
        "tests/test_a.py::test_six": P,
        "[100%]": P,
    }


def test_pytest_colours_whose_escape_got_lost() -> None:
    assert load_parser("sphinx")("[31mFAILED[0m tests/test_a.py::[1mtest_b[0m - assert\n") == {
        "tests/test_a.py::test_b": F
    }


def test_conventions_of_some_projects() -> None:
    log = "PASSED t.py::a[/tmp/x/data.py]\nPASSED t.py::b[//host/x]\nPASSED t.py::c[MouseButton.LEFT]\n"
    assert load_parser("requests")(log) == {
        "t.py::a[/data.py]": P,
        "t.py::b[//host/x]": P,
        "t.py::c[MouseButton.LEFT]": P,
    }
    assert "t.py::c[1]" in load_parser("matplotlib")(log)


def test_worse_status_of_two_runs_counts() -> None:
    for log in ("PASSED t.py::a\nFAILED t.py::a\n", "FAILED t.py::a\nPASSED t.py::a\n"):
        assert load_parser("pytest")(log) == {"t.py::a": F}
    assert load_parser("pytest")("t.py::a SKIPPED\nt.py::a PASSED\n") == {"t.py::a": P}


def test_last_progress_line_counts() -> None:
    """Lists of pytest's own tests hold words of it, which runs inside the tests print; some of those have to fail."""
    log = "FAILED    [100%]\nPASSED    [ 50%]\nPASSED    [100%]\nPASSED    [100%]----- live log teardown -----\n"
    required = ("[100%]", "[", "[100%]-----")
    assert match_tests(required, load_parser("pytest")(log)).statuses == dict.fromkeys(required, P)


def test_django_under_names_and_docstrings() -> None:
    found = load_parser("django")(DJANGO)
    of = {name.partition(" (")[0]: status for name, status in found.items() if name.endswith("(app.tests.ATests)")}
    assert of == {
        "test_plain": P,
        "test_docstring": P,
        "test_skipped": S,
        "test_known": XF,
        "test_noise": P,
        "test_noisy_failure": F,
        "test_subtests": E,
        "test_after": P,
        "test_bad_docstring": F,
    } | {name: of[name] for name in of if " ... " in name}
    assert found["It does what it says."] is P
    assert found["It fails."] is F
    assert "test_cut_short (app.tests.ATests)" not in found, "the final OK is no test's result"


def test_django_docstrings_that_several_tests_share() -> None:
    log = "a (m.A)\nThe same. ... skipped 'x'\na (m.B)\nThe same. ... ok\n"
    assert load_parser("django")(log)["The same."] is P
    assert load_parser("django")(log + "a (m.C)\nThe same. ... FAIL\n")["The same."] is F


def test_sympy_under_short_and_long_names() -> None:
    found = load_parser("sympy")(SYMPY)
    assert found["test_one"] is P
    assert found["test_two"] is F, "one of two files"
    assert found["sympy/core/tests/test_b.py:test_two"] is P
    assert found["sympy/core/tests/test_a.py:test_two"] is F
    assert (found["test_three"], found["test_slow"], found["test_last"]) == (E, XF, P)


@pytest.mark.parametrize("name", sorted(SMALL))
def test_small_logs(name: str) -> None:
    log, expected = SMALL[name]
    assert load_parser(name)(log) == expected
    assert load_parser(f"parse_log_{name}")(log.replace("\n", "\r\n")) == expected


def test_every_parser_has_a_small_log() -> None:
    elsewhere = {
        load_parser(name) for name in ("pytest", "pytest_v2", "pytest_options", "matplotlib", "django", "sympy", "r2e")
    }
    assert {load_parser(name) for name in LOG_PARSERS} == elsewhere | {load_parser(name) for name in SMALL}


def test_r2e_names_and_several_summaries() -> None:
    log = (
        "PASSED t.py::before_the_summary\n= short test summary info =\nPASSED r2e_tests/t.py::A::b[c - d]\n"
        "ERROR r2e_tests/t.py\nFAILED r2e_tests/t.py::e - x::y\nSKIPPED [1] t.py:1: x\n"
        "PASSED r2e_tests/u.py::e\n= 1 failed =\n"
    )
    assert load_parser("r2e")(log) == {"A.b[c": P, "e": P}, "the later of two tests with one short name counts"
    forged = log + "= short test summary info =\nFAILED r2e_tests/t.py::A::b[c - d]\n"
    assert load_parser("r2e")(forged)["A.b[c"] is F
    forged = (
        "= short test summary info =\nPASSED r2e_tests/t.py::f\n= short test summary info =\nFAILED r2e_tests/t.py::f\n"
    )
    assert load_parser("r2e")(forged) == {"f": F}


def test_unknown_parser_suggests_the_nearest() -> None:
    with pytest.raises(UsageError, match="'cargo'"):
        load_parser("parse_log_carg")


def test_only_parsers_of_pytest_name_node_ids() -> None:
    assert pytest_name("parse_log_xarray")("t.py::a") == "t.py::a"  # type: ignore[misc]  # it is there
    assert pytest_name("requests")("t.py::a[/x/y]") == "t.py::a[/y]"  # type: ignore[misc]  # likewise
    assert pytest_name("r2e")("t.py::A::b") == "A.b"  # type: ignore[misc]  # likewise
    assert pytest_name("django") is None
    assert pytest_name("no such parser\n") is None


# --- ids of published lists ------------------------------------------------------------------------------------


def test_matching_of_cut_spaced_and_dated_ids() -> None:
    found = {
        "t.py::a[x y]": P,
        "t.py::a[x z]": XF,
        "t.py::b[x y]": P,
        "t.py::b[x z]": F,
        "t.py::c[p  q]": P,
        "t.py::d[2026-11-20]": P,
        "t.py::e[x]": P,
    }
    required = ("t.py::a[x", "t.py::b[x", "t.py::c[p q]", "t.py::d[2024-08-27]", "t.py::e", "t.py::b[x y]")
    matched = match_tests(required, found)
    assert matched.statuses == dict(zip(required, (P, F, P, P, MISSING, P), strict=True))
    assert matched.cut == ("t.py::a[x", "t.py::b[x")
    assert matched.timed == ("t.py::d[2024-08-27]",)


@pytest.mark.parametrize(
    ("published", "found"),
    [
        ("Suite > parses [1.34 ms]", "Suite > parses"),
        ("Suite > parses", "Suite > parses [12 ms]"),
        ("renders a list (1.2s)", "renders a list (0.9 s)"),
        ("AES-128 in 29.08 msec tests passed", "AES-128 in 31 msec tests passed"),
        ("t.py::a[/tmp/x1/b/c.dcm-d]", "t.py::a[/c.dcm-d]"),
    ],
)
def test_durations_and_folders_are_not_part_of_an_id(published: str, found: str) -> None:
    matched = match_tests([published], {found: F, "renders": P})
    assert matched.statuses == {published: F}
    assert matched.timed == (published,)


def test_durations_as_parameters_and_dates_are_kept() -> None:
    found = {"t.py::a[2s]": P, "t.py::b[]": P}
    required = ("t.py::a[1s]", "t.py::b[2024-08-27]")
    assert match_tests(required, found).statuses == dict.fromkeys(required, MISSING)


def test_a_missing_test_is_not_found_under_the_name_of_another() -> None:
    found = {"works twice": P, "t.py::a[2020-01-02]": P, "waits (2 s)": P}
    required = ("works", "t.py::a[2020-01-01]", "t.py::a[2020-01-02]", "waits (1 s)", "waits (2 s)")
    assert match_tests(required, found).statuses == dict(zip(required, (MISSING, MISSING, P, MISSING, P), strict=True))


@given(st.dictionaries(st.text(max_size=12), st.sampled_from([P, F, S, XF, XP, E]), max_size=8))
def test_matching_takes_any_ids(found: dict[str, TestStatus]) -> None:
    assert match_tests(found, found).statuses == found
    assert match_tests(["no such test"], {}).statuses == {"no such test": MISSING}


# --- any text ----------------------------------------------------------------------------------------------------

ODD = (" ", "  ", "\n", "\r", "\t", "\x1b[31m", "\x1b", " - ", "::", "[", "]", "(", ")", " ... ", "_", "\ud800", "\x00")
WORDS = st.sampled_from([*ODD, *" ".join((PYTEST, VERBOSE, DJANGO, KARMA, SYMPY, P5JS, DOCTEST)).split()])


@settings(max_examples=60)
@given(st.one_of(st.text(), st.lists(WORDS).map(" ".join), st.lists(WORDS).map("".join)))
def test_no_text_makes_a_parser_raise(log: str) -> None:
    for name in PARSERS:
        for test, status in load_parser(name)(log).items():
            assert test
            assert isinstance(status, TestStatus)


HOSTILE = [
    " ",
    ".",
    "a ... ",
    "[ ",
    "a (",
    "FAILED a::b[ - ",
    "x::y PASSED (",
    "a",
    "1",
    "a: . ",
    "_ a.py:b _",
    "\x1b[0;",
    "\x1b]",
    "Tests run: 1, Failures: 1, Errors: 1, Skipped: 1,",
    '<SubCase name="',
    "Chrome 1 () ",
    "✓ a 1 (1",
    "a. = 1.",
    '<testcase name="',
    '<testcase name="&#' + "1" * 5000 + ';"/>',
    "{",
    "\n",
    "\r",
]
"""Pieces of text on which a careless pattern backtracks."""


@pytest.mark.slow
@pytest.mark.timeout(60)  # a quadratic pattern takes minutes, a linear one a few hundredths of a second
@pytest.mark.parametrize("name", PARSERS)
def test_time_is_linear(name: str) -> None:
    for piece in HOSTILE:
        text = piece * (100_000 // len(piece))
        load_parser(name)(f"test {text}x\nStarting browser\n{text}\n✔ {text}x")


@pytest.mark.timeout(60)  # a quadratic pattern takes many minutes
@pytest.mark.parametrize(
    ("name", "line"),
    [("phpunit", "✔ a" + " " * 1_000_000 + "b"), ("googletest", "[ OK ] a, where " * 60_000)],
    ids=["phpunit", "googletest"],
)
def test_time_is_linear_for_lines_that_almost_match(name: str, line: str) -> None:
    load_parser(name)(line)


@pytest.mark.timeout(60)  # a quadratic pattern takes many minutes
@pytest.mark.parametrize("piece", [" ", "1", "(", "( ", "1s ", "1."])
def test_a_duration_is_found_in_linear_time(piece: str) -> None:
    text = piece * (300_000 // len(piece))
    assert DURATION.search(f"{text}x") is None
    assert DURATION.search(f"{text}1s{text}x") is None
    assert DURATION.search(f"1s{' ' * 300_000}x") is None


@pytest.mark.parametrize(
    "name",
    ["adds 12ms", "adds 12 ms", "adds (12ms)", "adds ( 1.5 s ) ", "adds (0.2 S", "adds 3s)", "adds\t7MS", "adds12ms"],
)
def test_a_duration_is_cut_off(name: str) -> None:
    assert without_end(name, DURATION) == "adds"


def test_name_of_many_digits() -> None:
    """Python does not make a number of them."""
    log = f'<TestCase name="a"><SubCase name="&#{"1" * 5000};"></SubCase></TestCase>'
    assert list(load_parser("doctest")(log).values()) == [P]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", PARSERS)
def test_a_long_log_takes_linear_time(name: str) -> None:
    noise = "2026-11-20 12:00:00 INFO something happened in a module that logs a lot, with details (x=1) [ok]\n"
    found = load_parser(name)(noise * (1_000_000 // len(noise)) + PYTEST + DJANGO)
    assert found or name not in ("pytest", "django")
