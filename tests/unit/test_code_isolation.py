"""What a program that a model wrote can't do: pass without being right, reach out, outlive its test."""

import os
import platform
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from vllm_asd.tools.tasks import isolation
from vllm_asd.tools.tasks.confinement import Confinement, Kind
from vllm_asd.tools.tasks.isolation import NotConfined, Trial, confinement_here, confinement_of, passes
from vllm_asd.tools.tasks.sandbox.audit_hook import is_within

# Fails unless `right` is right, which no program below is.
TESTS = "assert right() == 1"
WRONG = "def right():\n    return 2\n"


@pytest.fixture(params=["bubblewrap", "fallback"])
def confinement(request: pytest.FixtureRequest) -> Confinement:
    kind: Kind = request.param
    found = confinement_of(kind)
    if found is None:
        pytest.skip(f"{kind} does not work on this machine")
    return found


def runs(program: str, confinement: Confinement, wall_time_s: float = 10.0) -> bool:
    """Whether a program gets to its end, whatever it computes."""
    return passes(Trial(program, "assert done == 1", "", "done"), wall_time_s, confinement)


class TestPasses:
    def test_what_is_right(self, confinement: Confinement) -> None:
        assert passes(Trial("def right():\n    return 1", TESTS), confinement=confinement)

    @pytest.mark.parametrize(
        ("program", "tests"),
        [
            ("def f(*a, **k):\n    return [a, k]", "assert f(1, 'x', z=2.5) == [(1, 'x'), {'z': 2.5}]"),
            (
                "def f(x):\n    return x",
                "assert all(f(x) == x for x in (None, True, 9**9999, {1}, b'b', 2j))",
            ),
            ("def f(x):\n    return x", "assert str(f(float('nan'))) == 'nan' and f(float('inf')) > 1e308"),
            ("def f(x, kind):\n    return isinstance(x, kind)", "assert f(1, int) and not f(1, str)"),
            (
                "from collections import Counter\ndef f(x):\n    return Counter(x)",
                "assert f('aab') == {'a': 2, 'b': 1}",
            ),
            ("def f():\n    yield from (1, 2)", "assert list(f()) == [1, 2]"),
            (
                "class Node:\n    def __init__(self, x):\n        self.x = x\n        self.next = None\n"
                "def total(n):\n    return n.x + total(n.next) if n else 0",
                "n = Node(1)\nn.next = Node(2)\nassert total(n) == 3 and n.next.x == 2 and n == n",
            ),
            (
                "def f(x):\n    raise KeyError(x)",
                "try:\n    f(1)\n    assert False\nexcept LookupError:\n    pass",
            ),
            ("import math", "assert math.isclose(math.pi, 3.14159265, abs_tol=1e-6)"),
            # MBPP names functions like Python's own.
            ("def sum(a, b):\n    return a * b", "assert sum(3, 5) == 15"),
            ("open('mine', 'w').write('x')\ndef f():\n    return open('mine').read()", "assert f() == 'x'"),
            ("import subprocess, threading, decimal, asyncio\ndef f():\n    return 1", "assert f() == 1"),
            ("print('noise' * 9999)\ndef f():\n    print('noise')\n    return 1", "assert f() == 1"),
        ],
    )
    def test_what_tests_ask_for(self, program: str, tests: str, confinement: Confinement) -> None:
        assert passes(Trial(program, tests), confinement=confinement)


class TestForgery:
    """Each of these would pass where the program shares a process with the tests or with a secret."""

    @pytest.mark.parametrize(
        "program",
        [
            "raise SystemExit(0)",
            "import os; os._exit(0)",
            "def right():\n    import os; os._exit(0)",
            "def right():\n    import sys; sys.exit(0)",
            "import atexit, os; atexit.register(os._exit, 0)\n" + WRONG,
            # A value that is equal to everything.
            "class Same(int):\n    def __eq__(self, other):\n        return True\n"
            "def right():\n    return Same(2)",
            "class Same:\n    def __eq__(self, other):\n        return True\ndef right():\n    return Same()",
            # The word on the command line, or in the caller's frame, written the way the launcher wrote it.
            "import os\nword = open('/proc/self/cmdline', 'rb').read().split(b'\\0')[-2]\n"
            "os.write(1, word); os._exit(0)",
            "import os, sys\nframe = sys._getframe()\nwhile frame:\n"
            "    os.write(1, str(frame.f_locals.get('word', '')).encode())\n    frame = frame.f_back\n"
            "os._exit(0)",
            "import gc, os\nfor found in gc.get_objects():\n"
            "    if isinstance(found, dict) and 'word' in found:\n"
            "        os.write(1, str(found['word']).encode())\nos._exit(0)",
            # Every open file gets an answer that says yes.
            "import json, os\nfor fd in range(3, 64):\n"
            "    for body in (b'{\"value\": 1}', b'{\"value\": null}'):\n"
            "        try:\n            os.write(fd, len(body).to_bytes(4, 'big') + body)\n"
            "        except OSError:\n            pass\nos._exit(0)",
            # Python's own functions, and what the launcher imported, replaced.
            "import builtins\nbuiltins.AssertionError = builtins.isinstance = lambda *a: True\n" + WRONG,
            "import sys\nfor module in list(sys.modules.values()):\n    if 'judge' in vars(module):\n"
            "        module.judge = lambda *a: None\n" + WRONG,
        ],
    )
    def test_is_no_pass(self, program: str, confinement: Confinement) -> None:
        assert not passes(Trial(program, TESTS), confinement=confinement)

    def test_a_builtin_of_its_own_does_not_reach_the_tests(self, confinement: Confinement) -> None:
        program = "def abs(x):\n    return 0\n\ndef f(x):\n    return 99"
        assert not passes(Trial(program, "assert abs(f(1) - 1) < 0.1"), confinement=confinement)

    def test_a_test_that_swallows_everything_needs_the_program_alive(self, confinement: Confinement) -> None:
        tests = "try:\n    f()\nexcept:\n    pass"
        assert passes(Trial("def f():\n    raise ValueError", tests), confinement=confinement)
        assert not passes(Trial("import os\ndef f():\n    os._exit(0)", tests), confinement=confinement)

    def test_the_program_does_not_see_the_tests(self, confinement: Confinement) -> None:
        program = (
            "import gc, sys\nsys.argv.append('wor' + 'd_a')\ndef right(wanted):\n"
            "    held = [repr(o) for o in gc.get_objects() if isinstance(o, (dict, list))]\n"
            "    return any('word_' + wanted in text for text in held)"
        )
        tests = "assert right('a')\nword_b = 1\nassert not right('b')"
        assert passes(Trial(program, tests), confinement=confinement)


# Each reaches out, and says so by leaving `done` undefined: it raises.
OVERSTEPS = [
    "x = bytearray(4 * 2**30)",
    "open('big', 'w').write('x' * 2**22)",
    "import subprocess; subprocess.run(['true'])",
    "import os; os.fork()",
    "import os; os.forkpty()",
    "import os; os.execv('/bin/true', ['true'])",
    "import os; os.posix_spawn('/bin/true', ['true'], {})",
    "import os; os.system('true')",
    "import os, signal; os.kill(os.getppid(), 0)",
    "import threading; threading.Thread(target=print).start()",
    "import socket; socket.create_connection(('127.0.0.1', 1))",
    "import socket; socket.socketpair()",
    "import ctypes; ctypes.CDLL(None)",
    "import _ctypes; _ctypes.dlopen(None, 0)",
    "import sqlite3; sqlite3.connect('/tmp/elsewhere.db')",
    "import vllm_asd",
    "import vllm_asd.tools.tasks",
    "import programs",
]
_FORK_EXEC = (
    "_posixsubprocess.fork_exec([b'/bin/touch', {path!r}.encode()], [b'/bin/touch'], True, (), None, None, "
    "-1, -1, -1, -1, -1, -1, *os.pipe(), False, False, 0, None, None, None, -1, None, False)"
)


class TestReach:
    @pytest.mark.parametrize("program", OVERSTEPS)
    def test_a_program_that_oversteps_fails(self, program: str, confinement: Confinement) -> None:
        assert not runs(f"{program}\ndone = 1", confinement)

    def test_fork_exec_starts_nothing(self, confinement: Confinement, tmp_path: Path) -> None:
        tmp_path.chmod(0o777)
        path = str(tmp_path / "touched")
        call = _FORK_EXEC.format(path=path)
        assert not runs(f"import os, _posixsubprocess\n{call}\ndone = 1", confinement)
        again = "import importlib, os, sys\ndel sys.modules['_posixsubprocess']\nimport _posixsubprocess\n"
        assert not runs(f"{again}{call}\ndone = 1", confinement)
        time.sleep(0.1)
        assert not Path(path).exists()

    def test_it_can_neither_write_nor_delete_elsewhere(
        self, confinement: Confinement, tmp_path: Path
    ) -> None:
        kept = tmp_path / "kept"
        kept.write_text("x")
        assert not runs(f"import os; os.remove({str(kept)!r})\ndone = 1", confinement)
        runs(f"open({str(kept)!r}, 'w')\ndone = 1", confinement)
        assert kept.read_text() == "x"

    def test_it_can_not_read_elsewhere(self, confinement: Confinement, tmp_path: Path) -> None:
        secret = tmp_path / "secret"
        secret.write_text("x")
        for path in (secret, Path(__file__), Path("/etc/passwd"), Path("/proc/self/environ")):
            assert not runs(f"open({str(path)!r}).read()\ndone = 1", confinement), path
        assert not runs(f"import os; os.listdir({str(Path.home())!r})[0]\ndone = 1", confinement)

    def test_a_folder_whose_name_begins_alike_is_elsewhere(self) -> None:
        """The working directory is found out and a sibling made whose name goes on from it."""
        fallback = confinement_of("fallback")
        assert fallback is not None
        program = (
            "import os\ndone = 0\nbeside = os.getcwd() + 'd'\n"
            "try:\n    os.mkdir(beside)\n    done = 1\nexcept PermissionError:\n    pass\n"
        )
        assert not runs(program, fallback)
        assert is_within("/tmp/abc", "/tmp/abc")
        assert is_within("/tmp/abc/d", "/tmp/abc")
        assert not is_within("/tmp/abcd", "/tmp/abc")
        assert not is_within("/tmp/abcd/e", "/tmp/abc")

    def test_the_environment_stays_outside(
        self, confinement: Confinement, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("VLLM_API_KEY", "secret")
        assert runs("import os\ndone = int('VLLM_API_KEY' not in os.environ)", confinement)

    def test_there_is_no_network(self, confinement: Confinement) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(0.1)
            port = server.getsockname()[1]
            program = f"import _socket\ns = _socket.socket()\ns.connect(('127.0.0.1', {port}))\ndone = 1"
            assert not runs(program, confinement)
            with pytest.raises(TimeoutError):
                server.accept()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Sessions that were started, as their first process's id."""
    found: list[int] = []
    start = Confinement.start

    def remember(self: Confinement, *arguments: object) -> object:
        process = start(self, *arguments)  # type: ignore[arg-type]
        found.append(process.pid)
        return process

    monkeypatch.setattr(Confinement, "start", remember)
    yield found
    for session in found:
        for pid in _of_session(session):
            os.kill(pid, signal.SIGKILL)


def _of_session(session: int) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(folder.name))
    return found


def _named(name: str) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "comm").read_text().strip() == name:
                found.append(int(folder.name))
        except OSError:
            continue
    return found


class TestEnd:
    def test_a_program_that_does_not_end_is_ended(self, confinement: Confinement, started: list[int]) -> None:
        begin = time.monotonic()
        assert not runs("while True: pass", confinement, wall_time_s=0.5)
        assert not runs("import time; time.sleep(60)", confinement, wall_time_s=0.5)
        assert time.monotonic() - begin < 10
        assert not [pid for session in started for pid in _of_session(session)]

    @pytest.mark.skipif(platform.system() != "Linux", reason="names its processes through /proc")
    def test_a_fork_bomb_leaves_nothing(self, confinement: Confinement, started: list[int]) -> None:
        """At most 200 tries, each child in a session of its own, which a killed group would not reach."""
        program = (
            "import os, time\n"
            "for _ in range(200):\n"
            "    try:\n"
            "        pid = os.fork()\n"
            "    except OSError:\n"
            "        continue\n"
            "    if pid == 0:\n"
            "        os.setsid()\n"
            "        open('/proc/self/comm', 'w').write('asd-bomb')\n"
            "        time.sleep(20)\n"
            "        os._exit(0)\n"
            "done = 1\n"
        )
        runs(program, confinement, wall_time_s=5.0)
        assert not [pid for session in started for pid in _of_session(session)]
        assert not _named("asd-bomb")

    def test_the_kernel_itself_refuses_processes(
        self, confinement: Confinement, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """Without the audit hook: a copy of the sandbox whose hook does nothing."""
        if not confinement.has_filter and os.geteuid() == 0:
            pytest.skip("no system call filter here")
        source = Path(isolation.__file__).parent / "sandbox"
        copy = tmp_path / "sandbox"
        copy.mkdir()
        for path in source.glob("*.py"):
            text = path.read_text()
            if path.name == "start.py":
                text = text.replace("audit_hook.install", "(lambda *_: None)")
            (copy / path.name).write_text(text)
        before = tuple(word.replace(str(source), str(copy)) for word in confinement.before)
        folder = confinement.launcher_folder if confinement.kind == "bubblewrap" else str(tmp_path)
        bare = replace(confinement, before=before, launcher_folder=folder)
        assert runs("done = 1", bare)
        forks = "import os\nfor _ in range(5):\n    if os.fork() == 0:\n        os._exit(0)\ndone = 1"
        assert not runs(forks, bare)
        if confinement.has_filter:
            assert not runs("import os\nos.execv('/bin/true', ['true'])", bare)
            assert not runs("import os, signal\nos.kill(os.getpid(), 0)\ndone = 1", bare)
            assert not runs("import socket\nsocket.socket()\ndone = 1", bare)


def test_where_nothing_confines_code_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "confinement_of", lambda _: None)
    with pytest.raises(NotConfined, match="install bubblewrap"):
        confinement_here()


def test_bubblewrap_goes_first_where_it_works() -> None:
    expected = confinement_of("bubblewrap") or confinement_of("fallback")
    assert confinement_here() == expected
