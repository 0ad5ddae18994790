"""The page of a diagnosis: what it says, in which order."""

from __future__ import annotations

from pathlib import Path

from support.builders import cells_frame, sparse_log
from taurank.report.diagnosis import diagnose
from taurank.report.overlap import overlap_page


def test_the_page_begins_with_the_verdict_the_telling_chart_and_what_to_do(tmp_path: Path) -> None:
    path, d = tmp_path / "sparse.html", diagnose(sparse_log(cells_frame()))
    overlap_page(d, path)
    text = path.read_text(encoding="utf-8")
    order = ["Overlap is good", "<svg", "What to do now", d.findings[0].advice, "<table"]
    offsets = [text.index(part) for part in order]
    assert offsets == sorted(offsets)
    assert text.count("<svg") == 1
