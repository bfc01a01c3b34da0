"""What the ASD arm of an audit sends, on servers with two pools and with a guard."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("openai")

from vllm_asd.config import AsdConfig, RequestLimits
from vllm_asd.telemetry.request_report import new_report
from vllm_asd.tools.audit.limits import audited_limits
from vllm_asd.tools.limits_option import read_limits
from vllm_asd.tools.server.served import Served, _limits

TWO_POOLS = AsdConfig(asd_scope="phases", asd_answer_budget=1.0, asd_answer_gate=0.1)


def served(config: AsdConfig) -> Served:
    """A server as it shows itself: its limits come out of a report."""
    report = new_report(config.limits, detailed=True)
    return Served("http://127.0.0.1:9", "m", "m", 512, "0.32.0", _limits(report), True, 5)


def frozen(folder: Path, **keys: Any) -> Path:
    """A file for `vllm serve --config`."""
    path = folder / "frozen.yaml"
    speculation = {"method": "ngram", "rejection_sample_method": "asd", **keys}
    path.write_text(yaml.safe_dump({"speculative-config": json.dumps(speculation)}))
    return path


def test_a_report_tells_all_that_the_server_runs() -> None:
    """Both pools and the guard; the limits read back are those put in."""
    assert served(TWO_POOLS).limits == TWO_POOLS.limits
    guarded = AsdConfig(asd_guard="on")
    assert served(guarded).limits == guarded.limits == RequestLimits(8.0, 0.25, 2, guard=True)


def test_both_pools_are_sent_as_they_are() -> None:
    """An answer pool of its own is not held to the reasoning's."""
    sent = audited_limits(served(TWO_POOLS), None).xargs
    assert (sent["asd_budget"], sent["asd_answer_budget"]) == (8.0, 1.0)
    assert (sent["asd_gate"], sent["asd_answer_gate"]) == (0.25, 0.1)
    tighter = audited_limits(served(TWO_POOLS), read_limits('{"asd_answer_budget": 0.5}')).xargs
    assert (tighter["asd_budget"], tighter["asd_answer_budget"]) == (8.0, 0.5)
    with pytest.raises(ValueError, match=r"asd_answer_budget=2.* is laxer"):
        audited_limits(served(TWO_POOLS), read_limits('{"asd_answer_budget": 2}'))
    with pytest.raises(ValueError, match="asd_answer_budget needs a server"):
        audited_limits(served(AsdConfig()), read_limits('{"asd_answer_budget": 2}'))


def test_a_frozen_file_is_run_as_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two pools, and a guard that the server need not run; but not the other way round."""
    monkeypatch.setattr("vllm_asd.tools.audit.limits._server_settings", lambda _: None)
    file = frozen(tmp_path, asd_scope="phases", asd_answer_budget=1.0, asd_answer_gate=0.1)
    assert audited_limits(served(TWO_POOLS), read_limits(str(file))).xargs["asd_answer_budget"] == 1.0
    with pytest.raises(ValueError, match="needs a server"):
        audited_limits(served(AsdConfig()), read_limits(str(file)))
    guarded = frozen(tmp_path, asd_guard="on")
    assert audited_limits(served(AsdConfig()), read_limits(str(guarded))).xargs["asd_guard"] == "on"
    with pytest.raises(ValueError, match=r"the server runs asd_guard='on' and frozen\.yaml has 'off'"):
        audited_limits(served(AsdConfig(asd_guard="on")), read_limits(str(frozen(tmp_path))))
