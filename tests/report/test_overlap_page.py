"""The page of a diagnosis: what it says first, and when it has which chart."""

from __future__ import annotations

from pathlib import Path

from support.builders import cells_frame, sparse_log
from taurank.report.diagnosis import diagnose
from taurank.report.overlap import overlap_page


def test_the_page_begins_with_the_verdict_the_telling_chart_and_what_to_do(tmp_path: Path) -> None:
    frame = cells_frame()
    sparse, known = tmp_path / "sparse.html", tmp_path / "known.html"
    d = diagnose(sparse_log(frame))
    overlap_page(d, sparse)
    overlap_page(diagnose(sparse_log(frame), cells=frame), known)
    text = sparse.read_text(encoding="utf-8")
    order = ["Overlap is good", "<svg", "What to do now", d.findings[0].advice, "<table", "Not identifiable"]
    offsets = [text.index(part) for part in order]
    assert offsets == sorted(offsets)
    assert text.count("<svg") == 1
    assert known.read_text(encoding="utf-8").count("<svg") == 2
