"""A real Prometheus that scrapes one server for as long as a `with` block lasts."""

import json
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "configs" / "grafana" / "prometheus.yml"
_START_S = 20.0


class Prometheus:
    """Answers queries."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Evaluate an expression now; one entry per series."""
        url = f"{self.base_url}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        with urllib.request.urlopen(url, timeout=10) as response:
            return list(json.load(response)["data"]["result"])


def installed() -> bool:
    """Whether the binary is there (Debian: `apt-get install prometheus`)."""
    return shutil.which("prometheus") is not None


@contextmanager
def scraping(port: int, folder: Path) -> Iterator[Prometheus]:
    """Run the repository's configuration against a local port, scraping every second."""
    config = yaml.safe_load(CONFIG.read_text())
    config["global"]["scrape_interval"] = "1s"
    config["scrape_configs"][0]["static_configs"] = [{"targets": [f"127.0.0.1:{port}"]}]
    path = folder / "prometheus.yml"
    path.write_text(yaml.safe_dump(config))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={path}",
                f"--storage.tsdb.path={folder / 'tsdb'}",
                f"--web.listen-address={address}",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        _wait_until_ready(f"http://{address}/-/ready")
        yield Prometheus(f"http://{address}")
    finally:
        process.terminate()
        process.wait()


def _wait_until_ready(url: str) -> None:
    deadline = time.monotonic() + _START_S
    while True:
        try:
            urllib.request.urlopen(url, timeout=1).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return
