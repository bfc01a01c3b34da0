"""`VllmServer`'s life against a stand-in for vLLM: it starts, reports, and leaves nothing behind."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from vllm_asd.tools.server import Metrics, ServerDied, VllmServer
from vllm_asd.tools.server.environment import preload_libraries
from vllm_asd.tools.server.process import group_members

# Answers /health and /metrics. Has a child, as vLLM has its engine core; with --stubborn it ignores signals.
FAKE = """
import http.server, signal, subprocess, sys
port = int(sys.argv[sys.argv.index("--port") + 1])
if "--die" in sys.argv:
    print("loading weights")
    sys.exit("ValueError: no such model")
ignore = "import signal; [signal.signal(s, signal.SIG_IGN) for s in (2, 15)]; "
child = (ignore if "--stubborn" in sys.argv else "") + "import time; time.sleep(300)"
subprocess.Popen([sys.executable, "-c", child])
if "--silent" in sys.argv:
    print("still loading", flush=True)
    signal.pause()

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'vllm:x_total{engine="0"} 2.0\\n' if self.path == "/metrics" else b"")

http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
def fake(tmp_path: Path) -> list[str]:
    script = tmp_path / "fake_vllm.py"
    script.write_text(FAKE)
    return [sys.executable, str(script)]


def server(fake: list[str], tmp_path: Path, *args: str, start_timeout_s: float = 30.0) -> VllmServer:
    return VllmServer(
        "m", args, command=fake, log_path=tmp_path / "server.log", start_timeout_s=start_timeout_s
    )


@pytest.fixture
def our_sigterm() -> Iterator[None]:
    """Whatever handler the test runner has stays as it was."""
    old = signal.getsignal(signal.SIGTERM)
    yield
    assert signal.getsignal(signal.SIGTERM) == old


@pytest.mark.usefixtures("our_sigterm")
class TestLifecycle:
    def test_serves_inside_the_block_and_is_gone_behind_it(self, fake: list[str], tmp_path: Path) -> None:
        with server(fake, tmp_path) as running:
            assert running.metrics().total("vllm:x_total", engine="0") == 2.0
            processes = running.process_ids()
        assert len(processes) == 2
        assert not alive(processes)

    def test_refuses_a_port_on_which_another_answers(self, fake: list[str], tmp_path: Path) -> None:
        with server(fake, tmp_path) as running:
            second = VllmServer("m", command=fake, port=running.port, log_path=tmp_path / "second.log")
            with pytest.raises(OSError, match=f"port {running.port} is in use"), second:
                pass

    def test_death_at_start_carries_the_tail_of_the_log(self, fake: list[str], tmp_path: Path) -> None:
        with pytest.raises(ServerDied, match=r"status 1(?s:.)*loading weights\nValueError: no such model"):
            server(fake, tmp_path, "--die").__enter__()

    def test_a_start_that_takes_too_long_is_ended(self, fake: list[str], tmp_path: Path) -> None:
        late = server(fake, tmp_path, "--silent", start_timeout_s=1.0)
        with pytest.raises(ServerDied, match=r"no answer after 1 s(?s:.)*still loading"):
            late.__enter__()
        assert not late.process_ids()

    def test_an_exception_inside_the_block_stops_it(self, fake: list[str], tmp_path: Path) -> None:
        running = server(fake, tmp_path)
        with pytest.raises(KeyboardInterrupt), running:
            raise KeyboardInterrupt
        assert not running.process_ids()

    def test_children_that_ignore_signals_are_killed(self, fake: list[str], tmp_path: Path) -> None:
        with server(fake, tmp_path, "--stubborn") as running:
            group = running._running
            group.stop(grace_s=1.0)
            assert not group.members()


@pytest.mark.parametrize(
    "ending", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=["ctrl-c", "sigterm", "sigkill"]
)
def test_no_orphans_when_the_parent_ends(fake: list[str], tmp_path: Path, ending: signal.Signals) -> None:
    """SIGKILL runs no handler of the parent: the kernel then tells the server, which ends its children."""
    program = textwrap.dedent("""
        import signal, sys
        from pathlib import Path
        from vllm_asd.tools.server import VllmServer
        # A job that a script puts into the background inherits a SIGINT that is ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with VllmServer("m", command=sys.argv[2:], log_path=Path(sys.argv[1])) as server:
            print(*server.process_ids(), flush=True)
            server.wait()
    """)
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "server.log"), *fake],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).resolve().parents[2],
    )
    assert parent.stdout is not None
    with parent.stdout:
        processes = [int(word) for word in parent.stdout.readline().split()]
        assert len(processes) == 2
        parent.send_signal(ending)
        parent.wait(timeout=30)
    # After SIGKILL the fake server's own child is beyond reach: a real engine core watches its parent itself.
    watched = processes[:1] if ending == signal.SIGKILL else processes
    wait_until_gone(watched)
    for process in alive(processes):
        os.kill(process, signal.SIGKILL)


def alive(processes: list[int]) -> list[int]:
    return [process for process in processes if process in group_members(_group_of(process))]


def _group_of(process: int) -> int:
    try:
        return os.getpgid(process)
    except ProcessLookupError:
        return -1


def wait_until_gone(processes: list[int], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while remaining := alive(processes):
        assert time.monotonic() < deadline, f"still alive: {remaining}"
        time.sleep(0.05)


class TestPreload:
    @pytest.fixture
    def prefix(self, tmp_path: Path) -> Path:
        (tmp_path / "lib").mkdir()
        (tmp_path / "lib" / "libiomp5.so").touch()
        return tmp_path

    def test_adds_openmp_of_the_environment(self, prefix: Path) -> None:
        assert str(prefix / "lib" / "libiomp5.so") in preload_libraries("", prefix)

    def test_keeps_what_is_there_in_front(self, prefix: Path) -> None:
        assert preload_libraries("/x/first.so:/x/libtcmalloc.so.4", prefix) == [
            "/x/first.so",
            "/x/libtcmalloc.so.4",
            str(prefix / "lib" / "libiomp5.so"),
        ]

    def test_adds_nothing_twice(self, prefix: Path) -> None:
        current = "/x/libiomp5.so:/x/libtcmalloc_minimal.so.4"
        assert preload_libraries(current, prefix) == current.split(":")

    @pytest.mark.parametrize("openmp", ["/x/libgomp.so.1", "/x/libomp.so", "/x/libiomp5.so"])
    def test_a_second_openmp_library_is_not_added(self, openmp: str, prefix: Path) -> None:
        current = f"{openmp}:/x/libtcmalloc_minimal.so.4"
        assert preload_libraries(current, prefix) == current.split(":")


def test_a_misspelt_metric_is_an_error() -> None:
    metrics = Metrics.parse('a_total{engine="0"} 1\na_total{engine="1"} 2\n')
    assert metrics.total("a_total") == 3.0
    assert metrics.total("a_total", engine="1") == 2.0
    with pytest.raises(KeyError, match="no metric b_total"):
        metrics.total("b_total")
