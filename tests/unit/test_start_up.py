"""A refused start ends in one line, and an installed plugin that nobody asked for says nothing."""

import logging
import subprocess
import sys
import types
from collections.abc import Iterator
from importlib import metadata

import pytest

from vllm_asd import plugin
from vllm_asd.config import AsdConfig, AsdConfigError
from vllm_asd.upstream import start_up

SCRIPT = """
import sys, types
from vllm_asd.config import AsdConfigError
from vllm_asd.upstream.start_up import end_in_one_line
for name in sys.argv[2:]:
    sys.modules[name] = types.ModuleType(name)
end_in_one_line()
end_in_one_line()
raise {"ours": AsdConfigError, "vllm": ValueError}[sys.argv[1]]("asd_gate=-1 is not allowed")
"""


def start(*arguments: str) -> subprocess.CompletedProcess[str]:
    """What a process that raises at its start leaves behind."""
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, check=False
    )


def test_our_refusal_is_one_line_and_exit_code_1() -> None:
    """Under the command `vllm`."""
    ended = start("ours", "vllm.entrypoints.cli.main")
    assert (ended.returncode, ended.stderr) == (1, "vllm-asd: error: asd_gate=-1 is not allowed\n")


def test_other_errors_and_scripts_keep_their_traceback() -> None:
    """Nothing of anybody else's is swallowed."""
    for arguments in (("vllm", "vllm.entrypoints.cli.main"), ("ours",)):
        ended = start(*arguments)
        assert ended.returncode == 1
        assert ended.stderr.startswith("Traceback")


@pytest.fixture
def plugins_logger(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """The loader of vLLM, with VLLM_PLUGINS unset."""
    plugins = pytest.importorskip("vllm.plugins")
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    yield plugins
    start_up.speak()


@pytest.mark.parametrize(
    ("names", "asked", "warned"), [(["asd"], False, 0), (["asd"], True, 1), (["asd", "other"], False, 1)]
)
def test_the_endpoint_warning_comes_only_where_it_helps(
    plugins_logger: types.ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    names: list[str],
    asked: bool,
    warned: int,
) -> None:
    """Not while ASD is off; with somebody else's plugin it is vLLM's business."""
    found = [metadata.EntryPoint(name, "x:y", "vllm.endpoint_plugins") for name in names]
    monkeypatch.setattr(metadata, "entry_points", lambda **_: found)
    start_up.keep_silent()
    if asked:
        start_up.speak()
    assert plugins_logger.load_endpoint_plugins() == []
    assert len([r for r in caplog.records if "VLLM_PLUGINS is not set" in r.getMessage()]) == warned


@pytest.mark.parametrize("scope", ["reasoning", "phases"])
@pytest.mark.parametrize(
    ("reasoning", "message"),
    [
        (None, "needs the model's think tokens: start vLLM with --reasoning-parser"),
        (
            types.SimpleNamespace(reasoning_start_token_ids=[3], natural_reasoning_end_token_ids=[4, 5]),
            "needs think markers of one token each, this model's take 1 and 2",
        ),
    ],
)
def test_a_scope_without_think_tokens_is_refused_before_anything_is_loaded(
    scope: str, reasoning: types.SimpleNamespace | None, message: str
) -> None:
    """In the front end, not by a worker that has loaded its model by then."""
    vllm_config = types.SimpleNamespace(
        parallel_config=types.SimpleNamespace(enable_batch_sharded_sampling=False),
        reasoning_config=reasoning,
    )
    with pytest.raises(AsdConfigError, match=message):
        plugin.on_requested(vllm_config, AsdConfig.from_keys({"asd_scope": scope}))
