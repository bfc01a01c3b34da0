"""Wrong server settings stop the start with one line that names the key and the fix."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vllm_asd import AsdConfig, AsdConfigError
from vllm_asd.config import most_permissive, split_speculative_config
from vllm_asd.upstream.engine_args import CONFIG_KEY, asd_config_of
from vllm_asd.upstream.patching import APPLIED

NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"asd_budget": -1}, "asd_budget must be a finite number >= 0"),
    ({"asd_budget": "8"}, "asd_budget must be a finite number >= 0"),
    ({"asd_budget": float("nan")}, "asd_budget must be a finite number >= 0"),
    ({"asd_budget": float("inf")}, "asd_budget must be a finite number >= 0"),
    ({"asd_budget": None}, "asd_budget must be a finite number >= 0"),
    ({"asd_budget": True}, "asd_budget must be a finite number >= 0"),
    ({"asd_budget": {"a": 1}}, "asd_budget must be a finite number >= 0"),
    ({"asd_gate": -0.25}, "asd_gate must be a finite number >= 0"),
    ({"asd_gate": "strict"}, "asd_gate must be a finite number >= 0"),
    ({"asd_refill": -1}, "asd_refill must be a finite number >= 0"),
    ({"asd_block_cap": 1.5}, "asd_block_cap must be an integer from 0 to 128"),
    ({"asd_block_cap": 129}, "asd_block_cap must be an integer from 0 to 128"),
    ({"asd_block_cap": -1}, "asd_block_cap must be an integer from 0 to 128"),
    ({"asd_block_cap": False}, "asd_block_cap must be an integer from 0 to 128"),
    ({"asd_pricing": "realised"}, "send 'remaining' or 'realized'"),
    ({"asd_scope": "answer"}, "send 'all', 'reasoning' or 'phases'"),
    ({"asd_answer_budget": 8}, 'asd_answer_budget needs "asd_scope": "phases", and here it is "all"'),
    ({"asd_answer_gate": 0, "asd_scope": "reasoning"}, 'and here it is "reasoning": set that, or drop'),
    ({"asd_answer_budget": -1, "asd_scope": "phases"}, "asd_answer_budget must be a finite number >= 0"),
    ({"asd_answer_gate": "x", "asd_scope": "phases"}, "asd_answer_gate must be a finite number >= 0"),
    ({"asd_answer_refill": True, "asd_scope": "phases"}, "asd_answer_refill must be a finite number >= 0"),
    ({"asd_answer_block_cap": 1.5, "asd_scope": "phases"}, "asd_answer_block_cap must be an integer from 0"),
    ({"asd_answer_scope": "all", "asd_scope": "phases"}, "asd_answer_scope is not an ASD key"),
    # The counterpart's mistake is named, not that of the key that was left out.
    ({"asd_budget": -1, "asd_scope": "phases"}, "asd_budget=-1"),
    ({"asd_protect": "eos"}, "send 'stop' or 'none'"),
    ({"asd_guard": True}, "send 'off' or 'on'"),
    ({"asd_guard": "always"}, "send 'off' or 'on'"),
    ({"asd_mode": "on"}, "send 'enforce' or 'shadow'"),
    ({"asd_mode": None}, "send 'enforce' or 'shadow'"),
    ({"asd_sampling": True}, "send 'off' or 'gumbel'"),
    ({"asd_budgets": 8}, "asd_budgets is not an ASD key"),
    ({"asd_": 8}, "asd_ is not an ASD key"),
    ({"asd-gate": "x"}, "asd_gate must be a finite number >= 0"),
]


@pytest.mark.parametrize(("keys", "message"), WRONG, ids=[str(keys) for keys, _ in WRONG])
def test_wrong_key(keys: dict[str, Any], message: str) -> None:
    """One line, with the key and what is allowed."""
    with pytest.raises(AsdConfigError) as caught:
        split_speculative_config({**NGRAM, "rejection_sample_method": "asd", **keys})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("method", [None, "standard", "synthetic"])
def test_keys_without_the_method(method: str | None) -> None:
    """An `asd_` key that would be silently strict is refused."""
    given = {**NGRAM, "asd_budget": 8.0} | ({} if method is None else {"rejection_sample_method": method})
    with pytest.raises(AsdConfigError, match='asd_budget needs "rejection_sample_method": "asd"'):
        split_speculative_config(given)


def test_other_methods_are_left_alone() -> None:
    """Without ASD the dictionary is vLLM's, unchanged."""
    given = {**NGRAM, "rejection_sample_method": "synthetic", "synthetic_acceptance_rate": 0.5}
    assert split_speculative_config(given) == (given, None)


@pytest.fixture
def engine_args() -> Iterator[Any]:
    """The `EngineArgs` of vLLM with the plugin's start-up patches, put back afterwards."""
    from vllm.engine.arg_utils import EngineArgs

    from vllm_asd.plugin import register

    register()
    yield EngineArgs
    APPLIED.undo_all()


def test_the_start_carries_the_settings(engine_args: Any, tiny_llama_dir: Path) -> None:
    """From the argument to the configuration that every process gets; vLLM sees its own method."""
    keys: dict[str, Any] = {"asd_budget": 4, "asd_gate": 0.5}
    given = {**NGRAM, "rejection_sample_method": "asd", **keys}
    args = engine_args(model=str(tiny_llama_dir), speculative_config=given, enforce_eager=True)
    for _ in range(2):  # several API servers build it from the same arguments
        built = args.create_engine_config()
        assert asd_config_of(built) == AsdConfig(**keys)
        assert built.speculative_config.rejection_sample_method == "standard"
    args.speculative_config = {**given, "asd_budget": 2}
    assert asd_config_of(args.create_engine_config()) == AsdConfig(asd_budget=2, asd_gate=0.5)
    args.speculative_config = dict(NGRAM)
    assert asd_config_of(args.create_engine_config()) is None


def test_the_start_refuses(engine_args: Any, tiny_llama_dir: Path) -> None:
    """A wrong key, and an additional configuration that claims our place."""
    wrong = {**NGRAM, "rejection_sample_method": "asd", "asd_gate": -1}
    with pytest.raises(AsdConfigError, match="asd_gate"):
        engine_args(model=str(tiny_llama_dir), speculative_config=wrong).create_engine_config()
    right = {**NGRAM, "rejection_sample_method": "asd"}
    # Without a drafter it would be inert, and `vllm_asd:enabled` would say 1.
    for speculative, additional in (
        (right, {CONFIG_KEY: {"asd_budget": 99}}),
        (None, {CONFIG_KEY: {}}),
        (right, [1]),
        (right, None),
    ):
        args = engine_args(
            model=str(tiny_llama_dir), speculative_config=speculative, additional_config=additional
        )
        with pytest.raises(AsdConfigError, match="--additional-config"):
            args.create_engine_config()


@pytest.mark.parametrize("extra_args", [{1: "theirs"}, {None: 1, "x": 2}, [1], 5, "asd_budget"])
def test_foreign_extra_args_are_left_alone(extra_args: Any) -> None:
    """Offline, vLLM takes anything there; what is no `asd_` key is nothing to ASD."""
    assert AsdConfig().limits_for(extra_args) == AsdConfig().limits


@pytest.mark.parametrize(
    ("key", "laxer", "stricter"),
    [("asd_mode", "enforce", "shadow"), ("asd_sampling", "gumbel", "off"), ("asd_guard", "off", "on")],
)
def test_words_have_an_order(key: str, laxer: str, stricter: str) -> None:
    """A request may ask for the stricter one, on any server; engines in one process admit the laxest."""
    lax, strict = AsdConfig.from_keys({key: laxer}), AsdConfig.from_keys({key: stricter})
    for server in (lax, strict):
        assert getattr(server.settings_for({key: stricter}), key) == stricter
    with pytest.raises(AsdConfigError, match=f"leave {key} out or send '{stricter}'"):
        strict.settings_for({key: laxer})
    assert most_permissive([strict, lax]) == most_permissive([lax, strict]) == lax


PHASES = AsdConfig(
    asd_scope="phases", asd_budget=4.0, asd_gate=0.5, asd_answer_budget=2.0, asd_answer_block_cap=1
)


def test_an_answer_key_that_is_left_out_has_its_counterparts_value() -> None:
    """So each phase has a pool of its own, of the same size."""
    answer = PHASES.limits.answer
    assert answer is not None
    assert (answer.budget, answer.gate, answer.block_cap, answer.refill) == (2.0, 0.5, 1, 0.0)
    assert AsdConfig.from_keys({"asd_scope": "phases", "asd_answer_gate": None}) == AsdConfig(
        asd_scope="phases"
    )
    assert AsdConfig().limits.answer is None


def test_settings_survive_the_way_to_other_processes() -> None:
    """Keys that mean nothing in a scope are not shown, nor sent on."""
    for config in (PHASES, AsdConfig(), AsdConfig(asd_scope="reasoning")):
        assert AsdConfig.from_keys(config.in_force()) == config
    assert not [key for key in AsdConfig().in_force() if "answer" in key]


@pytest.mark.parametrize(
    ("wish", "reasoning", "answer"),
    [
        ({}, 4.0, 2.0),
        ({"asd_budget": 0}, 0.0, 0.0),
        ({"asd_budget": 1.0}, 1.0, 1.0),
        ({"asd_budget": 3.0}, 3.0, 2.0),
        ({"asd_budget": 0, "asd_answer_budget": 1.5}, 0.0, 1.5),
        ({"asd_answer_budget": 0}, 4.0, 0.0),
    ],
)
def test_a_requests_budget_tightens_both_pools(wish: dict[str, Any], reasoning: float, answer: float) -> None:
    """Unless it says what the answer may spend: a budget of 0 stays strict everywhere."""
    limits = PHASES.limits_for(wish)
    assert limits.answer is not None
    assert (limits.budget, limits.answer.budget) == (reasoning, answer)
    assert limits.is_strict is (reasoning == answer == 0)


@pytest.mark.parametrize("key", ["gate", "block_cap", "refill"])
def test_so_do_the_other_limits(key: str) -> None:
    """Each with its own counterpart."""
    server = AsdConfig(asd_scope="phases", asd_refill=1.0)
    limits = server.limits_for({f"asd_{key}": 0})
    assert limits.answer is not None
    assert getattr(limits.answer, key) == getattr(limits, key) == 0
    assert limits.is_strict is (key != "refill")
    alone = server.limits_for({f"asd_answer_{key}": 0})
    assert getattr(alone, key) > 0
    assert not alone.is_strict


@pytest.mark.parametrize("server", [AsdConfig(), AsdConfig(asd_scope="reasoning")])
def test_answer_keys_need_a_server_with_phases(server: AsdConfig) -> None:
    with pytest.raises(AsdConfigError, match='asd_answer_gate needs a server with "asd_scope": "phases"'):
        server.limits_for({"asd_answer_gate": 0})
    assert most_permissive([server, PHASES]).limits_for({"asd_answer_budget": 2.0}).answer is not None


@pytest.mark.parametrize(
    ("key", "laxer"), [("budget", 2.5), ("gate", 0.75), ("block_cap", 2), ("refill", 0.1)]
)
def test_the_answers_limits_are_the_servers_at_most(key: str, laxer: float) -> None:
    with pytest.raises(AsdConfigError, match=f"asd_answer_{key}={laxer} is laxer than this server allows"):
        PHASES.limits_for({f"asd_answer_{key}": laxer})


def test_the_largest_limits_are_those_of_either_phase() -> None:
    """What V2 and the exception trace size their look-ups by."""
    lax = AsdConfig(asd_scope="phases", asd_answer_gate=3.0, asd_answer_block_cap=9)
    assert (lax.largest_gate, lax.largest_block_cap) == (3.0, 9)
    assert (AsdConfig().largest_gate, AsdConfig().largest_block_cap) == (0.25, 2)


def test_not_asked_for(engine_args: Any, tiny_llama_dir: Path) -> None:
    """Without the method the configuration is what it would be without the plugin."""
    built = engine_args(model=str(tiny_llama_dir), speculative_config=dict(NGRAM)).create_engine_config()
    assert asd_config_of(built) is None
    assert built.additional_config == {}
