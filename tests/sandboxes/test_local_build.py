"""Dockerfiles built without an engine: each step as an engine runs it, in a layer above the base image."""

import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from swe_gym.errors import SandboxStartError, Unsupported
from swe_gym.sandboxes import SandboxSpec, open_sandbox
from swe_gym.sandboxes.images import ImageStore
from swe_gym.sandboxes.local import LocalSandbox, problem
from swe_gym.types import ImageBuild

FILES = {
    "one.txt": "1\n",
    "two.txt": "2\n",
    "code/main.py": "pass\n",
    "code/deep/data.bin": "\x00\x01",
    "run.sh": "#!/bin/sh\necho ran\n",
}


@pytest.fixture
def spec(tmp_path: Path) -> Iterator[SandboxSpec]:
    """A sandbox whose image a Dockerfile in `tmp_path` makes."""
    if why := problem("namespace"):
        pytest.skip(why)
    for name, text in FILES.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "run.sh").chmod(0o755)
    name = f"swe-gym-test/{tmp_path.name.replace('_', '-').lower()}:{time.time_ns()}"
    yield SandboxSpec(image=name, build=ImageBuild(context=str(tmp_path), timeout=60), workdir="/srv", activate=False)
    ImageStore().prune([name])


def ask(spec: SandboxSpec, dockerfile: str, command: str) -> str:
    """Build the image, and return what a command prints in a sandbox of it."""
    assert spec.build is not None
    (Path(spec.build.context) / "Dockerfile").write_text(dockerfile)
    with open_sandbox(spec) as sandbox:
        return sandbox.exec(command, merge=True).text


@pytest.mark.parametrize(
    ("steps", "command", "expected"),
    [
        (
            "ENV A=1 B='two words'\nENV C=$A-${B} D=\\$A\nENV E the rest",
            "echo $A,$B,$C,$D,$E",
            "1,two words,1-two words,$A,the rest",
        ),
        ("ARG X=7\nENV Y=$X\nRUN echo $X > x", "cat /x; echo $X$Y", "7\n7"),
        ("WORKDIR /srv\nWORKDIR app\nRUN pwd > where", "cat /srv/app/where", "/srv/app"),
        (
            "WORKDIR /srv\nCOPY one.txt .\nCOPY one.txt two.txt sub/\nCOPY one.txt three",
            "cat one.txt sub/* three",
            "1\n1\n2\n1",
        ),
        ("COPY *.txt /srv/\nCOPY code /srv/code\nCOPY run.sh /usr/bin/ran", "ls /srv /srv/code/*; ran", None),
        ("COPY --chown=7:8 code /srv/code", "stat -c %u:%g code/main.py code/deep/data.bin", "7:8\n7:8"),
        (
            'SHELL ["/bin/bash", "-c"]\nRUN [[ a == a ]] && echo yes > /yes\nRUN ["touch", "/a b"]',
            "cat /yes; ls '/a b'",
            "yes\n/a b",
        ),
        (
            "RUN rm /etc/debian_version && rm -r /usr/share/doc",
            "ls /etc/debian_version /usr/share/doc 2>&1 | grep -c 'No such'",
            "2",
        ),
        ("RUN rm -r /usr/share/doc && echo file > /usr/share/doc", "cat /usr/share/doc", "file"),
        ("RUN rm -r /usr/share/doc && mkdir /usr/share/doc && touch /usr/share/doc/new", "ls /usr/share/doc", "new"),
        (
            "RUN ln -s /etc/hostname /link && ln /etc/passwd /hard && mkfifo /pipe",
            "readlink /link; stat -c %F /pipe; cmp /hard /etc/passwd",
            "/etc/hostname\nfifo",
        ),
        ("RUN chmod 4711 /bin/true && chown 3:4 /bin/true", "stat -c '%a %u:%g' /bin/true", "711 3:4"),
        ("RUN mkdir -m 700 /empty", "stat -c '%a %F' /empty", "700 directory"),
        ("LABEL a=b\nEXPOSE 80\nCMD true\nVOLUME /data\nSTOPSIGNAL 9", "echo fine", "fine"),
        (
            "RUN useradd -m worker\nUSER worker\nRUN id -un > /tmp/me && echo $HOME >> /tmp/me",
            "cat /tmp/me; id -un",
            "worker\n/home/worker\nworker",
        ),
        ("USER nobody:sys\nRUN id -gn > /tmp/group", "cat /tmp/group; id -gn", "sys\nsys"),
        ("# a comment that ends in \\\nRUN echo a && \\\n\n # between \\\n echo b >\\\n /b", "cat /b", "b"),
        ("RUN\techo tab > /t", "cat /t", "tab"),
        ("ARG BASE X=1 Y='a b'\nARG X=2\nARG X\nRUN echo $X,$Y,${BASE%%-*} > /x", "cat /x", "2,a b,swe"),
        ("RUN echo $BASE. > /x", "cat /x", "."),
        (
            "ENV ID=7\nCOPY --chown=$ID:$ID one.txt /a\nCOPY --chown=8 one.txt /b\nCOPY --chown=nobody one.txt /c",
            "stat -c %u:%g /a /b; stat -c %U:%G /c",
            "7:7\n8:8\nnobody:nogroup",
        ),
        ("RUN " + "[" * 90_000 + " || echo no > /x", "cat /x", "no"),
    ],
)
def test_steps_do_what_an_engine_does(
    spec: SandboxSpec, stored_image: str, steps: str, command: str, expected: str | None
) -> None:
    said = ask(spec, f"ARG BASE={stored_image}\nFROM --platform=linux/amd64 $BASE AS main\n{steps}\n", command).strip()
    if expected is None:
        expected = "/srv/code/main.py\n\n/srv:\ncode\none.txt\ntwo.txt\n\n/srv/code/deep:\ndata.bin\nran"
    assert said == expected


def test_archives_are_unpacked_by_add_only(spec: SandboxSpec, stored_image: str, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "one.txt", "in/one.txt")
    steps = 'ADD ["a.tar.gz", "/srv/"]\nCOPY a.tar.gz /srv/kept.tar.gz\nADD two.txt /srv/'
    assert (
        ask(spec, f"FROM {stored_image}\n{steps}\n", "ls /srv; cat /srv/in/one.txt") == "in\nkept.tar.gz\ntwo.txt\n1\n"
    )


def test_steps_start_in_the_folder_of_the_base_image(
    spec: SandboxSpec, stored_image: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert ask(spec, f"FROM {stored_image}\nWORKDIR /base\n", "true") == ""
    above = tmp_path_factory.mktemp("above")
    (above / "one.txt").write_text("1\n")
    build = ImageBuild(context=str(above), timeout=60)
    other = spec.model_copy(update={"image": f"{spec.image}-above", "build": build})
    try:
        steps = "RUN pwd > /where\nCOPY one.txt .\nWORKDIR below\n"
        assert ask(other, f"FROM {spec.image}\n{steps}", "cat /where; ls /base") == "/base\nbelow\none.txt\n"
    finally:
        ImageStore().prune([str(other.image)])


def test_an_image_is_built_once_and_shares_the_layers_of_its_base(spec: SandboxSpec, stored_image: str) -> None:
    dockerfile = f"FROM {stored_image}\nRUN date +%s%N > /when\n"
    assert ask(spec, dockerfile, "cat /when") == ask(spec, dockerfile, "cat /when")
    store = ImageStore()
    base, built = store.find(stored_image), store.find(str(spec.image))
    assert base is not None
    assert built is not None
    assert built.layers[:-1] == base.layers
    assert built.size < 1 << 20


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ("RUN echo because >&2; exit 3", r"(?s)not built: RUN echo because.*exit code 3: because"),
        ("COPY missing .", "not built: COPY missing .: file not found: .*/missing"),
        ("COPY ../../etc/passwd .", r"COPY ../../etc/passwd .: .*leads out of the folder|file not found"),
        ("USER nobody-here\nRUN true", "the image has no user 'nobody-here'"),
        ("USER nobody:no-such\nRUN true", "the image has no group 'no-such'"),
        ("SUMMON demons", "SUMMON demons: unknown step"),
        ("SHELL /bin/bash -c", "SHELL /bin/bash -c: it must be a list in JSON"),
        ("COPY one.txt", "COPY one.txt: it needs a source and a target"),
        ("ENV", "ENV : its arguments are missing"),
    ],
)
def test_a_step_that_fails_is_named_and_nothing_is_stored(
    spec: SandboxSpec, stored_image: str, steps: str, message: str
) -> None:
    with pytest.raises(SandboxStartError, match=message) as caught:
        ask(spec, f"FROM {stored_image}\n{steps}\n", "true")
    assert caught.value.reason == "image"
    assert ImageStore().find(str(spec.image)) is None


@pytest.mark.parametrize(
    ("dockerfile", "message"),
    [
        ("FROM a\nFROM b", "FROM b: stages need an engine"),
        ("FROM a\nCOPY --from=b x y", "--from=b needs an engine"),
        ("FROM a\nADD https://example.org/x /x", "addresses need an engine"),
        ("FROM a\nENV A=${B:-c}", r"only \$NAME and"),
        ("FROM a\nONBUILD RUN true", "it runs in another build"),
        ('FROM a\nADD ["https://example.org/x", "/x"]', "addresses need an engine"),
        ("ARG A=b", "FROM: missing"),
        ("FROM --platform=linux/amd64", "it names no image"),
        ("RUN true\nFROM a", "RUN true: only ARG may stand before FROM"),
    ],
)
def test_what_needs_an_engine_is_refused_before_the_start(spec: SandboxSpec, dockerfile: str, message: str) -> None:
    assert spec.build is not None
    (Path(spec.build.context) / "Dockerfile").write_text(dockerfile)
    with pytest.raises(Unsupported, match=f"cannot build .*/Dockerfile: .*{message}.*docker build -t"):
        LocalSandbox.for_spec(spec)


def test_ignore_files_need_an_engine(spec: SandboxSpec, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM a\n")
    (tmp_path / ".dockerignore").write_text("one.txt\n")
    with pytest.raises(Unsupported, match=r"\.dockerignore: remove it"):
        LocalSandbox.for_spec(spec)


def test_steps_neither_reach_nor_copy_files_of_this_machine(
    spec: SandboxSpec, stored_image: str, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to("/etc/hostname")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/link").symlink_to("/etc/hostname")
    with pytest.raises(SandboxStartError, match=r"COPY link /x: .*/link leads out of the folder"):
        ask(spec, f"FROM {stored_image}\nCOPY link /x\n", "true")
    steps = f"RUN mkdir -p {tmp_path} && touch {tmp_path}/escaped && ls {tmp_path} > /seen\nCOPY folder /folder\n"
    said = ask(spec, f"FROM {stored_image}\n{steps}", "cat /seen; readlink /folder/link")
    assert said == "escaped\n/etc/hostname\n"
    assert not (tmp_path / "escaped").exists()


def test_a_build_ends_in_time(spec: SandboxSpec, stored_image: str) -> None:
    assert spec.build is not None
    slow = spec.model_copy(update={"build": spec.build.model_copy(update={"timeout": 3.0})})
    with pytest.raises(SandboxStartError, match="was not built"):
        ask(slow, f"FROM {stored_image}\nRUN sleep 600\n", "true")
