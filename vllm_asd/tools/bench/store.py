"""The output folder: one file per finished cell, so that nothing finished is lost or done twice."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vllm_asd.tools.bench.cells import Cell
from vllm_asd.tools.bench.settings import Settings
from vllm_asd.tools.settings_file import keep_settings
from vllm_asd.tools.whole_file import write_whole

SCHEMA = "vllm-asd/bench-cell/1"
# More repeats may be asked for later; everything else makes another run of it.
_MAY_DIFFER = ("repeats",)


class Store:
    """Reads and writes cells."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        """Open a folder, new or of an earlier run with the same settings.

        Raises:
            BadUsage: It belongs to a run with other settings.
        """
        self.folder = folder
        self._cells = folder / "cells"
        self._cells.mkdir(parents=True, exist_ok=True)
        keep_settings(folder / "settings.json", settings.as_json(), _MAY_DIFFER)

    @property
    def scratch(self) -> Path:
        """For logs and what `vllm bench serve` reads and writes; may be deleted."""
        path = self.folder / "scratch"
        path.mkdir(exist_ok=True)
        return path

    def has(self, cell: Cell) -> bool:
        """Whether the cell is finished."""
        return self._path(cell).exists()

    def read(self, cell: Cell) -> dict[str, Any]:
        """A finished cell."""
        return dict(json.loads(self._path(cell).read_text()))

    def read_all(self, cells: Iterable[Cell]) -> dict[Cell, dict[str, Any]]:
        """Those of the cells that are finished."""
        return {cell: self.read(cell) for cell in cells if self.has(cell)}

    def write(self, cell: Cell, record: dict[str, Any]) -> None:
        """Keep a finished cell; it is there whole or not at all."""
        write_whole(self._path(cell), json.dumps({"schema": SCHEMA, **record}))

    def _path(self, cell: Cell) -> Path:
        return self._cells / f"{cell.name}.json"
