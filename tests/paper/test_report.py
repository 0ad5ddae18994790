"""The report: everything said, everything escaped, nothing from outside, and what is missing is named."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

from support import paper_frames as made_up
from support.html_reader import Reader, assert_links_resolve, assert_self_contained
from taurank.errors import InputError
from taurank_paper import charts, claims, folder, report, tables
from taurank_paper.folder import printed

RESULTS = Path(__file__).parents[2] / "docs" / "results"
NASTY = "<script>alert('x')</script>&|_*"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = made_up.save(made_up.frames(), tmp_path_factory.mktemp("whole"))
    report.write(folder)
    return folder


@pytest.fixture(scope="module")
def document(whole: Path) -> str:
    return (whole / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def results() -> list[claims.ClaimResult]:
    return claims.check(made_up.frames())


def test_all_files_are_written(whole: Path) -> None:
    written = {path.name for path in whole.iterdir()} - {f"{name}.csv" for name in made_up.frames()}
    assert written == {"run.json", "report.html", "comparison.svg", "comparison.md", "verdicts.csv"}
    assert list(pd.read_csv(whole / "verdicts.csv")["id"]) == [claim.id for claim in claims.CLAIMS]


def test_nothing_comes_from_outside_and_links_resolve(document: str) -> None:
    assert_self_contained(document)
    assert_links_resolve(document)
    assert set(report.KINDS) <= set(Reader(document).attributes("id"))


def test_the_page_leads_with_the_result(document: str) -> None:
    """Counts, main chart and main table, in this order, before the contents, the claims and the experiments."""
    marks = [
        'class="tally"', "<svg", 'aria-label="CP@10, product, personalized"', "<table", "<nav", 'id="claims"',
        'class="card ', *(f'<h2 id="{section}"' for section in report.KINDS), 'id="run"',
    ]  # fmt: skip
    found = [document.index(mark) for mark in marks]
    assert found == sorted(found)
    assert document.count(marks[2]) == 1  # the main chart is drawn once


def test_one_line_counts_the_verdicts(document: str, results: list[claims.ClaimResult]) -> None:
    counts = [sum(one.here.verdict == verdict for one in results) for verdict in claims.VERDICTS]
    line = "{} claims: {} reproduced, {} not reproduced, {} inconclusive.".format(len(results), *counts)
    assert line.replace(" ", "") in Reader(document).text.replace(" ", "")


def test_claims_are_folded_cards_with_their_criteria(document: str, results: list[claims.ClaimResult]) -> None:
    cards = re.findall(r'<details class="card (\w+)" id="([^"]+)">', document)
    assert cards == [(report.COLORS[one.here.verdict], one.claim.id) for one in results]
    assert "<details open" not in document
    text = Reader(document).text
    for result in results:
        assert f"{result.here.verdict} {result.claim.claim}" in text
        assert result.claim.criterion in text


def test_the_page_says_how_the_data_differ_in_plain_english(document: str) -> None:
    text = Reader(document).text
    assert text.count("93 weeks") == 1
    assert "those here of 53" in text
    assert "Missing" not in text
    assert not re.findall(r"\b\w*(?:isation|ised|ising|colour|behaviour|centre)\b", text)
    assert not re.findall(r"is over|is under|cannot be told|does not hold|aims? at", text)


def test_the_papers_figures_are_beside_ours(document: str) -> None:
    assert '<td class="number best">24.000 <small>±0.100</small></td>' in document  # of DLCE in product, original
    assert '<td class="number quiet best">2.414 <small>±0.010</small></td>' in document


def test_the_best_is_marked_and_the_limits_do_not_compete() -> None:
    values = {"popular": 1.0, "dlce": 2.0, "dlto": 3.0, "countingbayes": 4.0, "truth": 9.0}
    frame = pd.DataFrame({"method": values.keys(), "mean": values.values(), "std": 0.1})
    frame = frame.assign(items="category", setting="original", metric="CDCG")

    def marked() -> set[str]:
        return {row[0].text for row in tables.main(frame, "CDCG")[2] if row[1].kind == "best"}

    assert marked() == {"DLTO", "CountingBayes"}
    (table,) = tables.compared(frame, "comparison", ["CDCG"], ("", ""))
    assert re.findall(r'<tr class="ruled">\s*<t[hd][^>]*>([^<]*)', table) == ["CountingBayes", "Truth"]
    frame.loc[frame["method"] == "countingbayes", "mean"] = 2.5
    assert marked() == {"DLTO"}
    rows = printed()["car"]
    assert tables.best_score(rows, "dlto", "CAR") == rows["mean"].min()


def text_of(folder: Path) -> str:
    """The words of the report of a folder, written now."""
    report.write(folder)
    return Reader((folder / "report.html").read_text(encoding="utf-8")).text


def test_an_experiment_of_ones_own_gets_a_section_like_those_of_its_kind(tmp_path: Path) -> None:
    frames = {name: made_up.frames()[name] for name in ("capping", "comparison")}
    folder = made_up.save(frames, tmp_path)
    frames["capping"].assign(mean=7.125).to_csv(folder / "mine.csv", index=False)
    frames["comparison"].to_csv(folder / "second.csv", index=False)
    own = {"mine": {"kind": "capping", "title": "More caps"}, "second": {"kind": "comparison", "title": "Again"}}
    run = json.loads((folder / "run.json").read_text()) | {"own": own}
    (folder / "run.json").write_text(json.dumps(run))
    before, links, section, *_ = text_of(folder).split("More caps")
    assert "7.125" in section
    assert "7.125" not in before + links
    document = (folder / "report.html").read_text(encoding="utf-8")
    names = Reader(document).attributes("id")
    assert {"own-mine", "own-second"} <= set(names)
    assert len(names) == len(set(names))
    assert document.count('aria-label="CP@10, product, personalized"') == 2, "each comparison has its main chart"


def test_the_search_is_shown_with_what_it_cost(tmp_path: Path) -> None:
    folder = made_up.save({}, tmp_path)
    line = {"items": "category", "setting": "original", "objective": "CAR", "trials": 16, "updates": 40_000_000}
    cost = [{"pruned": 5, "minutes": 2.25, "validation": 0.25}, {"pruned": 16, "minutes": 1.0}]
    found = [{"method": "dlce", "settings": '{"cap": 0.3}'}, {"method": "blce", "settings": "null"}]
    rows = [{**line, **one, **two} for one, two in zip(cost, found, strict=True)]
    pd.DataFrame(rows).to_csv(folder / "search.csv", index=False)
    text = text_of(folder)
    for expected in ("category original CAR 16 40 5 2.25 0.25 DLCE cap: 0.3", "BLCE null"):
        assert expected in text


@pytest.mark.parametrize("kept", [(), ("car",), ("statistics", "losses")])
def test_what_is_missing_is_said(tmp_path: Path, kept: tuple[str, ...]) -> None:
    frames = made_up.frames()
    made_up.save({name: frames[name] for name in kept}, tmp_path)
    missing = [name for name in report.KINDS if name not in kept]
    assert f"Missing experiments: {', '.join(missing)}. To run one: taurank paper {missing[0]}" in text_of(tmp_path)
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert [name for name in missing if f'id="{name}"' in html] == [], "a section without content"
    assert all(f'id="{name}"' in html for name in kept)


def test_what_a_run_lacks_and_how_it_differs_is_named(tmp_path: Path) -> None:
    made_up.save({"car": made_up.frames()["car"]}, tmp_path, weeks=93)
    assert "as many as the paper" in text_of(tmp_path)
    (tmp_path / "run.json").unlink()
    assert "There is no run.json" in text_of(tmp_path)


def test_a_smoke_run_gets_no_verdicts(tmp_path: Path) -> None:
    made_up.save({"car": made_up.frames()["car"]}, tmp_path, preset="smoke")
    (tmp_path / "findings.toml").write_text("[explanations]\ndlce-best-in-car = 'found on real data'")
    text = text_of(tmp_path)
    assert "so no claim is checked" in text
    for words in ("reproduced", "93 weeks", "found on real data"):
        assert words not in text
    assert len(pd.read_csv(tmp_path / "verdicts.csv")) == 0


FINDINGS = """
note = "Trained
too briefly <script>."

[sections]
car = "About CAR."

[explanations]
dlce-best-in-car = "First
paragraph.

Second one."
dlce-over-blce = "not shown: inconclusive"
""".replace('"', '"""')


def test_findings_are_read_from_the_folder_of_the_run(tmp_path: Path) -> None:
    made_up.save({"car": printed()["car"].assign(mean=[0.5, 0.7, 0.9])}, tmp_path)
    (tmp_path / "findings.toml").write_text(FINDINGS)
    text = text_of(tmp_path)
    assert "First paragraph. Second one." in text
    assert "About CAR." in text
    assert "not shown" not in text
    assert "Trained too briefly <script>." in text
    row = pd.read_csv(tmp_path / "verdicts.csv").set_index("id").loc["dlce-best-in-car"]
    assert row["explanation"] == "First paragraph. Second one."


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("note =", "not valid TOML"),
        ("notes = 'x'", "unknown key 'notes'"),
        ("[sections]\nnothing = 'x'", "unknown key 'sections.nothing'"),
        ("[explanations]\nnothing = 'x'", "unknown key 'explanations.nothing'"),
    ],
)
def test_bad_findings_are_refused_in_one_sentence(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "findings.toml").write_text(content)
    with pytest.raises(InputError, match=message):
        report.write(tmp_path)


@pytest.mark.parametrize("whole_page", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_published_verdicts_and_tables_are_those_of_the_published_figures(
    whole_page: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not whole_page:  # its charts take seconds
        monkeypatch.setattr(report, "blocks", lambda run, results: [])
    run = folder.read(RESULTS)
    failed = {one.claim.id for one in claims.check(run.frames) if one.here.verdict == "not reproduced"}
    assert set(run.findings.explanations) == failed, "what is not reproduced is explained"
    shutil.copytree(RESULTS, tmp_path / "results")
    report.write(tmp_path / "results")
    for name in ("verdicts.csv", "comparison.md", "comparison.svg"):
        assert (tmp_path / "results" / name).read_bytes() == (RESULTS / name).read_bytes()


def test_foreign_text_is_escaped_everywhere(tmp_path: Path) -> None:
    """A researcher's own method with a name that HTML and Markdown would take for markup."""
    frames = made_up.frames()
    for name in ("comparison", "car", "unevenness"):
        own = frames[name][frames[name]["method"] == "dlce"].assign(method=NASTY)
        own = own.assign(settings=json.dumps({NASTY: NASTY})) if name == "comparison" else own
        frames[name] = pd.concat([frames[name], own])
    made_up.save({name: frames[name] for name in ("comparison", "car", "unevenness")}, tmp_path)
    (tmp_path / "run.json").write_text(json.dumps({"source": NASTY, NASTY: 1}), encoding="utf-8")
    report.write(tmp_path)
    document = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert NASTY in "".join(Reader(document).words)
    assert_self_contained(document)
    for text in (document, *((tmp_path / name).read_text("utf-8") for name in ("comparison.svg", "comparison.md"))):
        assert "<script" not in text
        assert "alert" in text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("items,setting,method,metric,mean,std\ncategory,original,dlce,CAR,much,1\n", "cannot be read .*much"),
        ("", "cannot be read as CSV"),
    ],
)
def test_bad_tables_are_refused_in_one_sentence(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "car.csv").write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        report.write(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["car.csv"]


def test_a_bad_record_or_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        report.write(tmp_path / "none")
    for content, message in (("{", "cannot be read as JSON"), ("[]", "does not contain a JSON object")):
        (tmp_path / "run.json").write_text(content, encoding="utf-8")
        with pytest.raises(InputError, match=message):
            report.write(tmp_path)


# ---- the charts ----------------------------------------------------------------------------------


def test_any_label_gets_a_style_of_its_own() -> None:
    own = ["my_module:X", "my_module:DLCE", "Größe 7", NASTY, *(f"method {number}" for number in range(20))]
    chosen = charts.styles([*charts.STYLES, *own])
    assert list(chosen) == [*charts.STYLES, *own]
    assert len(set(chosen.values())) == len(chosen) - 1  # the two limits look alike
    assert charts.styles(own[::-1])["my_module:X"] == chosen["my_module:X"]  # the same in every chart
    assert len(charts.styles([f"method {number}" for number in range(500)])) == 500
