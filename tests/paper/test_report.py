"""The report: everything said, everything escaped, nothing from outside, and what is missing is named."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pandas as pd
import pytest

import taurank
from support import paper_tables as made_up
from support.html_reader import Reader, assert_links_resolve, assert_self_contained
from taurank.errors import InputError
from taurank_paper.report import charts, claim_list, inputs, page, sections, styles, tables
from taurank_paper.report.inputs import Inputs
from taurank_paper.verdicts import claims, paper_tables

RESULTS = Path(__file__).parents[2] / "docs" / "results"
NASTY = "<script>alert('x')</script>&|_*"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = made_up.save(made_up.frames(), tmp_path_factory.mktemp("whole"))
    page.write(folder)
    return folder


@pytest.fixture(scope="module")
def document(whole: Path) -> str:
    return (whole / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def text(whole: Path) -> str:
    return (whole / "report.md").read_text(encoding="utf-8")


def test_all_files_are_written(whole: Path) -> None:
    written = {path.name for path in whole.iterdir()} - {f"{name}.csv" for name in inputs.COLUMNS}
    made = {"report.html", "report.md", "comparison.svg", "comparison.md", "verdicts.csv", "verdicts.json"}
    assert written == {"run.json", *made}
    rows = json.loads((whole / "verdicts.json").read_text(encoding="utf-8"))
    table = pd.read_csv(whole / "verdicts.csv")
    assert [row["id"] for row in rows] == list(table["id"]) == [claim.id for claim in claims.CLAIMS]
    assert [row["verdict"] for row in rows] == list(table["verdict"])
    assert {row["reproduced"] for row in rows} <= {True, False, None}


def test_nothing_comes_from_outside_and_links_resolve(document: str) -> None:
    assert_self_contained(document)
    assert_links_resolve(document)
    assert {section.name for section in sections.SECTIONS} <= set(Reader(document).attributes("id"))


def test_the_page_leads_with_the_result(document: str) -> None:
    """Counts, main chart and main table, in this order, before the contents, the claims and the experiments."""
    marks = [
        'class="tally"', "<svg", 'aria-label="CP@10, product, personalized"', "<table", "<nav", 'id="claims"',
        'class="card ', *(f'<h2 id="{section.name}"' for section in sections.SECTIONS), 'id="run"',
    ]  # fmt: skip
    found = [document.index(mark) for mark in marks]
    assert found == sorted(found)
    assert document.count(marks[2]) == 1  # the main chart is drawn once


def test_one_line_counts_the_verdicts(document: str, text: str) -> None:
    results = claims.check(made_up.frames())
    counts = [sum(one.verdict == verdict for one in results) for verdict in claims.VERDICTS.values()]
    line = "{} claims: {} reproduced, {} not reproduced, {} inconclusive.".format(len(results), *counts)
    assert claim_list.tally(results) == line
    assert line.replace(" ", "") in Reader(document).text.replace(" ", "")
    assert text.splitlines()[2] == f"**{line}**"


def test_claims_are_folded_cards(document: str) -> None:
    cards = re.findall(r'<details class="card (\w+)" id="([^"]+)">', document)
    results = claims.check(made_up.frames())
    assert cards == [(claim_list.KINDS[one.reproduced], one.id) for one in results]
    assert "<details open" not in document


def test_the_page_says_every_claim_and_how_the_data_differ(document: str) -> None:
    report = Reader(document).text
    for result in claims.check(made_up.frames()):
        assert f"{result.verdict} {result.claim}" in report
        assert result.criterion in report
    assert report.count("93 weeks") == 1
    assert "those here of 53" in report
    assert "Missing" not in report


def test_the_text_has_80_columns(text: str) -> None:
    prose = [line for line in text.splitlines() if not line.startswith(("|", "#", "**"))]
    assert len(prose) > 50
    assert max(map(len, prose)) <= 80


def test_the_report_is_in_american_plain_english(document: str, text: str) -> None:
    for report in (Reader(document).text, text):
        assert not re.findall(r"\b\w*(?:isation|ised|ising|colour|behaviour|centre)\b", report)
        assert not re.findall(r"is over|is under|cannot be told|does not hold|aims? at", report)


def test_the_papers_figures_are_beside_ours(document: str, text: str) -> None:
    ours = made_up.frames()["comparison"].query("items == 'product' and setting == 'original' and method == 'dlce'")
    mean = ours.loc[ours["metric"] == "CDCG", "mean"].iloc[0]
    assert f"**{mean:.3f}** ±0.010 | **2.414** ±0.010" in text
    assert '<td class="number quiet best">2.414 <small>±0.010</small></td>' in document


def test_the_best_is_marked_and_the_limits_do_not_compete() -> None:
    rows = [("popular", 1.0), ("dlce", 2.0), ("dlto", 3.0), ("countingbayes", 4.0), ("truth", 9.0)]
    frame = pd.DataFrame(
        [("category", "original", method, "CDCG", value, 0.1) for method, value in rows],
        columns=["items", "setting", "method", "metric", "mean", "std"],
    )
    (table,) = tables.comparison(frame)
    marked = {row[0].text for row in table.rows if row[1].kind == "best"}
    assert marked == {"DLTO", "CountingBayes"}
    assert [table.rows[number][0].text for number in sorted(table.ruled)] == ["CountingBayes", "Truth"]
    frame.loc[frame["method"] == "countingbayes", "mean"] = 2.5
    (table,) = tables.comparison(frame)
    assert {row[0].text for row in table.rows if row[1].kind == "best"} == {"DLTO"}


def test_for_car_the_smallest_is_best() -> None:
    (table,) = tables.car(paper_tables.car())
    assert [row[0].text for row in table.rows if "best" in row[1].kind] == ["DLCE"]


def test_an_experiment_of_ones_own_gets_a_section_like_those_of_its_kind(tmp_path: Path) -> None:
    frames = made_up.frames()
    folder = made_up.save(frames, tmp_path)
    frames["capping"].assign(mean=7.125).to_csv(folder / "mine.csv", index=False)
    run = json.loads((folder / "run.json").read_text()) | {"own": {"mine": {"kind": "capping", "title": "More caps"}}}
    (folder / "run.json").write_text(json.dumps(run))
    page.write(folder)
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert "7.125" in text.split("## More caps")[1]
    assert "7.125" not in text.split("## More caps")[0]
    reader = Reader((folder / "report.html").read_text(encoding="utf-8"))
    names = reader.attributes("id")
    assert "own-mine" in names
    assert len(names) == len(set(names))


def test_the_search_is_shown_with_what_it_cost(tmp_path: Path) -> None:
    folder = made_up.save(made_up.frames(), tmp_path)
    line = {"items": "category", "setting": "original", "objective": "CAR", "trials": 16, "updates": 40_000_000}
    cost = [{"pruned": 5, "core_minutes": 2.25, "validation": 0.25}, {"pruned": 16, "core_minutes": 1.0}]
    found = [{"method": "dlce", "settings": '{"cap": 0.3}'}, {"method": "blce", "settings": "null"}]
    rows = [{**line, **one, **two} for one, two in zip(cost, found, strict=True)]
    pd.DataFrame(rows).to_csv(folder / "search.csv", index=False)
    page.write(folder)
    report = Reader((folder / "report.html").read_text(encoding="utf-8")).text
    for expected in (
        "category, original: DLCE, CAR",
        "cap 0.3",
        "0.250",
        "16, 5 pruned",
        "32, 21 pruned",
        "2.2 min",
        "3 min",
    ):
        assert expected in report


@pytest.mark.parametrize("kept", [(), ("car",), ("statistics", "losses")])
def test_what_is_missing_is_said(tmp_path: Path, kept: tuple[str, ...]) -> None:
    frames = made_up.frames()
    made_up.save({name: frames[name] for name in kept}, tmp_path)
    page.write(tmp_path)
    missing = [section.name for section in sections.SECTIONS if section.name not in kept]
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    line = f"Missing experiments: {', '.join(missing)}. To run one: taurank paper {missing[0]}"
    assert line in Reader(html).text
    assert [name for name in missing if f'id="{name}"' in html] == [], "a section without content"
    assert all(f'id="{name}"' in html for name in kept)
    assert line in " ".join((tmp_path / "report.md").read_text(encoding="utf-8").split())


def test_missing_datasets_are_named(tmp_path: Path) -> None:
    frame = made_up.frames()["comparison"]
    made_up.save({"comparison": frame[frame["items"] == "category"]}, tmp_path)
    (tmp_path / "run.json").unlink()
    page.write(tmp_path)
    text = " ".join((tmp_path / "report.md").read_text(encoding="utf-8").split())
    assert "Not run, though the paper shows them: product, original; product, personalized." in text
    assert "There is no run.json" in text


def test_empty_tables_are_not_an_error(tmp_path: Path) -> None:
    frames = {name: frame.iloc[:0] for name, frame in made_up.frames().items()}
    made_up.save(frames, tmp_path)
    page.write(tmp_path)
    assert (tmp_path / "report.html").is_file()


def test_a_smoke_run_gets_no_verdicts(tmp_path: Path) -> None:
    frames = made_up.frames()
    made_up.save({name: frames[name] for name in ("car", "comparison")}, tmp_path, preset="smoke")
    (tmp_path / "findings.toml").write_text("[explanations]\ndlce-best-in-car = 'found on real data'")
    page.write(tmp_path)
    document = (tmp_path / "report.html").read_text(encoding="utf-8")
    text = " ".join((tmp_path / "report.md").read_text(encoding="utf-8").split())
    for report in (Reader(document).text, text):
        assert "so no claim is checked" in report
        assert "reproduced" not in report
        assert "93 weeks" not in report
        assert "found on real data" not in report
    assert 'class="card' not in document
    assert_links_resolve(document)
    assert json.loads((tmp_path / "verdicts.json").read_text()) == []
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
    worse = paper_tables.car().assign(mean=[0.5, 0.7, 0.9])
    made_up.save({"car": worse}, tmp_path)
    (tmp_path / "findings.toml").write_text(FINDINGS)
    page.write(tmp_path)
    document, text = ((tmp_path / name).read_text(encoding="utf-8") for name in ("report.html", "report.md"))
    for report in (Reader(document).text, " ".join(text.split())):
        assert "First paragraph. Second one." in report
        assert "About CAR." in report
        assert "not shown" not in report
    assert "Trained too briefly <script>." in Reader(document).text
    assert document.index("Trained too briefly") < document.index("<nav")
    assert "Trained too briefly &lt;script>." in text
    row = pd.read_csv(tmp_path / "verdicts.csv").set_index("id").loc["dlce-best-in-car"]
    assert row["explanation"] == "First paragraph. Second one."


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("note =", "findings.toml' cannot be read as TOML"),
        ("notes = 'x'", "unknown key 'notes'"),
        ("[sections]\nnothing = 'x'", "unknown key 'sections.nothing'"),
        ("[explanations]\nnothing = 'x'", "unknown key 'explanations.nothing'"),
    ],
)
def test_bad_findings_are_refused_in_one_sentence(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "findings.toml").write_text(content)
    with pytest.raises(InputError, match=message):
        page.write(tmp_path)


def test_what_is_not_reproduced_in_the_published_results_is_explained() -> None:
    run = inputs.read(RESULTS)
    failed = {one.id for one in claims.check(run.frames) if one.reproduced is False}
    assert set(run.findings.explanations) == failed


def test_the_published_report_is_that_of_the_published_tables() -> None:
    run = inputs.read(RESULTS)
    results = claims.check(run.frames, run.findings.explanations, authors=run.authors)
    assert (RESULTS / "report.md").read_text(encoding="utf-8") == page.markdown(run, results)
    assert (RESULTS / "verdicts.csv").read_text(encoding="utf-8") == claims.to_frame(results).to_csv(index=False)


def test_the_package_ships_no_findings() -> None:
    assert not list(Path(taurank.__file__).parent.rglob("findings.toml"))


def test_weeks_that_were_not_searched_make_verdicts_provisional(tmp_path: Path) -> None:
    page.write(made_up.save({"car": paper_tables.car()}, tmp_path, weeks=93))
    text = " ".join((tmp_path / "report.md").read_text(encoding="utf-8").split())
    assert "were searched on the packaged weeks" in text


def test_foreign_text_is_escaped_everywhere(tmp_path: Path) -> None:
    """A researcher's own method with a name that HTML and Markdown would take for markup."""
    frames = made_up.frames()
    for name in ("comparison", "car", "unevenness"):
        own = frames[name][frames[name]["method"] == "dlce"].assign(method=NASTY)
        frames[name] = pd.concat([frames[name], own.assign(settings=NASTY) if name == "comparison" else own])
    made_up.save({name: frames[name] for name in ("comparison", "car", "unevenness")}, tmp_path)
    (tmp_path / "run.json").write_text(json.dumps({"source": NASTY, NASTY: 1}), encoding="utf-8")
    page.write(tmp_path)
    document = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert_self_contained(document)
    assert "<script" not in document
    assert "<script" not in (tmp_path / "comparison.svg").read_text(encoding="utf-8")
    assert NASTY in "".join(Reader(document).words)
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "<script>" not in text
    assert "alert" in text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("items,setting,method,metric,mean\n", "has no column 'std'"),
        ("items,setting,method,metric,mean,std\ncategory,original,dlce,CAR,much,1\n", "1 value in the column 'mean'"),
        ("", "cannot be read as CSV"),
    ],
)
def test_bad_tables_are_refused_in_one_sentence(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "car.csv").write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        page.write(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["car.csv"]


def test_a_bad_record_or_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        page.write(tmp_path / "none")
    (tmp_path / "run.json").write_text("{", encoding="utf-8")
    with pytest.raises(InputError, match="cannot be read as JSON"):
        page.write(tmp_path)
    (tmp_path / "run.json").write_text("[]", encoding="utf-8")
    with pytest.raises(InputError, match="does not contain a JSON object"):
        page.write(tmp_path)


def test_each_method_has_its_own_style_that_is_legible_on_white_and_on_black() -> None:
    known = list(styles.STYLES)
    assert set(paper_tables.METHODS) <= set(known)
    colors = [style.color for style in styles.STYLES.values() if style.color != "currentColor"]
    assert len(colors) == len(set(colors))
    assert not set(colors) & set(styles.OTHER_COLORS)
    for color in (*colors, *styles.OTHER_COLORS):
        assert contrast(color, "#ffffff") > 2.7
        assert contrast(color, "#14181d") > 2.7


def test_any_label_gets_a_style_of_its_own() -> None:
    own = ["my_module:X", "my_module:DLCE", "Größe 7", NASTY, *(f"method {number}" for number in range(20))]
    chosen = styles.styles([*styles.STYLES, *own])
    assert list(chosen) == [*styles.STYLES, *own]
    assert len(set(chosen.values())) == len(chosen) - 1  # the two limits look alike
    assert styles.styles(own[::-1])["my_module:X"] == chosen["my_module:X"]  # the same in every chart
    assert len(styles.styles([f"method {number}" for number in range(500)])) == 500


def test_methods_of_ones_own_are_in_charts_and_tables() -> None:
    frame = made_up.frames()["comparison"]
    own = frame[frame["method"] == "dlce"].assign(method="my_module:X")
    frame = pd.concat([frame, own])
    assert all("my_module:X" in row for row in (tables.main(frame, "CP@10").markdown().replace("\\_", "_"),))
    for block in [*charts.scores(frame, "CDCG"), *charts.outcome_against_effect(frame)]:
        assert "my_module:X" in block
    assert "my_module:X" in charts.comparison_file(frame)


def test_an_own_comparison_has_its_main_chart() -> None:
    frame = made_up.frames()["comparison"]
    record = {"own": {"mine": {"kind": "comparison", "title": "Mine"}}}
    run = Inputs({"mine": frame}, record)
    (own,) = [(section, frames) for section, frames in sections.sections_of(run) if section.own]
    assert 'aria-label="CP@10, product, personalized"' in "".join(sections.blocks(*own))


def contrast(one: str, two: str) -> float:
    """The contrast ratio of two colors (WCAG 2)."""
    light, dark = sorted((luminance(one), luminance(two)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(color: str) -> float:
    parts = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
