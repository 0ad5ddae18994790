"""The report: everything said, everything escaped, nothing from outside, and what is missing is named."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from support import paper_tables as madeup
from taurank.errors import InputError
from taurank.paper.report import charts, page, tables
from taurank.paper.verdicts import claims, paper_tables

NASTY = "<script>alert('x')</script>&|_*"


class Reader(HTMLParser):
    """All tags and attributes, and the text."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, Any]]] = []
        self.words: list[str] = []
        self.style: list[str] = []
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        (self.style if self.tags and self.tags[-1][0] == "style" else self.words).append(data)

    def attributes(self, name: str) -> list[str]:
        return [values[name] for _, values in self.tags if name in values]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = madeup.save(madeup.frames(), tmp_path_factory.mktemp("whole"))
    page.write(folder)
    return folder


@pytest.fixture(scope="module")
def document(whole: Path) -> str:
    return (whole / "report.html").read_text(encoding="utf-8")


def test_all_files_are_written(whole: Path) -> None:
    written = {path.name for path in whole.iterdir()} - {f"{name}.csv" for name in page.COLUMNS}
    made = {"report.html", "report.md", "comparison.svg", "comparison.md", "verdicts.csv", "verdicts.json"}
    assert written == {"run.json", *made}
    rows = json.loads((whole / "verdicts.json").read_text(encoding="utf-8"))
    table = pd.read_csv(whole / "verdicts.csv")
    assert [row["id"] for row in rows] == list(table["id"]) == [claim.id for claim in claims.CLAIMS]
    assert [row["verdict"] for row in rows] == list(table["verdict"])
    assert {row["holds"] for row in rows} <= {True, False, None}


def test_nothing_comes_from_outside(document: str) -> None:
    reader = Reader(document)
    addresses = set(re.findall(r"https?://[^\"' <)]+", document))
    assert all(address.startswith("http://www.w3.org/") for address in addresses)  # names of XML, not fetched
    assert not {tag for tag, _ in reader.tags} & {"script", "link", "iframe", "img", "object"}
    assert not reader.attributes("src")
    assert all(address.startswith("#") for address in reader.attributes("href"))
    assert "url(" not in "".join(reader.style)
    assert "@import" not in document


def test_links_lead_somewhere_and_names_are_unique(document: str) -> None:
    reader = Reader(document)
    names = reader.attributes("id")
    assert len(names) == len(set(names))
    assert {address.removeprefix("#") for address in reader.attributes("href")} <= set(names)
    assert {section.name for section in page.SECTIONS} <= set(names)


def test_the_page_says_every_claim_and_how_the_data_differ(document: str) -> None:
    words = " ".join(Reader(document).words)
    for verdict in claims.judge(madeup.frames()):
        assert verdict.claim in words
        assert verdict.criterion in words
    assert words.count("93 weeks") == 1
    assert "those here of 53" in words
    assert "Missing" not in words


def test_the_papers_figures_stand_beside_ours(document: str, whole: Path) -> None:
    text = (whole / "report.md").read_text(encoding="utf-8")
    ours = madeup.frames()["comparison"].query("items == 'product' and setting == 'original' and method == 'dlce'")
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
    marked = {row[0].words for row in table.rows if row[1].kind == "best"}
    assert marked == {"DLTO", "CountingBayes"}
    assert [table.rows[number][0].words for number in sorted(table.apart)] == ["CountingBayes", "Truth"]
    frame.loc[frame["method"] == "countingbayes", "mean"] = 2.5
    (table,) = tables.comparison(frame)
    assert {row[0].words for row in table.rows if row[1].kind == "best"} == {"DLTO"}


def test_for_car_the_smallest_is_best() -> None:
    (table,) = tables.car(paper_tables.car())
    assert [row[0].words for row in table.rows if "best" in row[1].kind] == ["DLCE"]


def test_an_experiment_of_ones_own_gets_a_section_like_those_of_its_kind(tmp_path: Path) -> None:
    frames = madeup.frames()
    folder = madeup.save(frames, tmp_path)
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
    folder = madeup.save(madeup.frames(), tmp_path)
    line = {"items": "category", "setting": "original", "objective": "CAR", "trials": 16, "updates": 40_000_000}
    cost = [{"cut": 5, "core_minutes": 2.25, "validation": 0.25}, {"cut": 16, "core_minutes": 1.0}]
    found = [{"method": "dlce", "settings": '{"cap": 0.3}'}, {"method": "blce", "settings": "null"}]
    rows = [{**line, **one, **two} for one, two in zip(cost, found, strict=True)]
    pd.DataFrame(rows).to_csv(folder / "search.csv", index=False)
    page.write(folder)
    words = " ".join(Reader((folder / "report.html").read_text(encoding="utf-8")).words)
    for expected in (
        "category, original: DLCE, CAR",
        "cap 0.3",
        "0.250",
        "16, 5 cut",
        "32, 21 cut",
        "2.2 min",
        "3 min",
    ):
        assert expected in words


@pytest.mark.parametrize("kept", [(), ("car",), ("statistics", "losses")])
def test_what_is_missing_is_said(tmp_path: Path, kept: tuple[str, ...]) -> None:
    frames = madeup.frames()
    madeup.save({name: frames[name] for name in kept}, tmp_path)
    page.write(tmp_path)
    missing = [section.name for section in page.SECTIONS if section.name not in kept]
    words = " ".join(Reader((tmp_path / "report.html").read_text(encoding="utf-8")).words)
    assert f"Missing experiments: {', '.join(missing)}." in words
    assert words.count("this experiment was not run") == len(missing)
    assert f"Missing experiments: {', '.join(missing)}." in (tmp_path / "report.md").read_text(encoding="utf-8")


def test_missing_settings_are_named(tmp_path: Path) -> None:
    frame = madeup.frames()["comparison"]
    madeup.save({"comparison": frame[frame["items"] == "category"]}, tmp_path)
    (tmp_path / "run.json").unlink()
    page.write(tmp_path)
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "Missing, though the paper shows them: product, original; product, personalized." in text
    assert "There is no run.json" in text


def test_empty_tables_are_no_error(tmp_path: Path) -> None:
    frames = {name: frame.iloc[:0] for name, frame in madeup.frames().items()}
    madeup.save(frames, tmp_path)
    page.write(tmp_path)
    assert (tmp_path / "report.html").is_file()


def test_a_smoke_run_claims_nothing_and_other_weeks_are_not_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(claims.EXPLANATIONS, "dlce-best-in-car", "found on the real data")
    worse = paper_tables.car().assign(mean=[0.5, 0.7, 0.9])
    page.write(madeup.save({"car": worse}, tmp_path))
    assert "found on the real data" in (tmp_path / "report.md").read_text(encoding="utf-8")
    page.write(madeup.save({"car": worse}, tmp_path, weeks=93))
    assert "found on the real data" not in (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "were searched on the packaged weeks" in (tmp_path / "report.md").read_text(encoding="utf-8")
    page.write(madeup.save({"car": worse}, tmp_path, preset="smoke"))
    assert "found on the real data" not in (tmp_path / "report.md").read_text(encoding="utf-8")
    words = " ".join((tmp_path / "report.md").read_text(encoding="utf-8").split())
    assert "say nothing about the paper's claims" in words
    assert "93 weeks" not in words


def test_foreign_words_are_escaped_everywhere(tmp_path: Path) -> None:
    """A researcher's own method with a name that is no good in HTML or Markdown."""
    frames = madeup.frames()
    for name in ("comparison", "car", "unevenness"):
        own = frames[name][frames[name]["method"] == "dlce"].assign(method=NASTY)
        frames[name] = pd.concat([frames[name], own.assign(settings=NASTY) if name == "comparison" else own])
    madeup.save({name: frames[name] for name in ("comparison", "car", "unevenness")}, tmp_path)
    (tmp_path / "run.json").write_text(json.dumps({"source": NASTY, NASTY: 1}), encoding="utf-8")
    page.write(tmp_path)
    reader = Reader((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert not [tag for tag, _ in reader.tags if tag == "script"]
    assert NASTY in "".join(reader.words)
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "<script>" not in text
    assert "alert" in text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("items,setting,method,metric,mean\n", "lacks the column 'std'"),
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
    with pytest.raises(InputError, match="holds no JSON object"):
        page.write(tmp_path)


def test_each_method_has_one_colour_that_reads_on_white_and_on_black() -> None:
    colours = [colour for colour in charts.COLOURS.values() if colour != "currentColor"]
    assert len(colours) == len(set(colours))
    assert set(paper_tables.METHODS) <= set(charts.COLOURS)
    for colour in colours:
        assert contrast(colour, "#ffffff") > 2.7
        assert contrast(colour, "#14181d") > 2.7


def contrast(one: str, two: str) -> float:
    """The contrast ratio of two colours (WCAG 2)."""
    light, dark = sorted((luminance(one), luminance(two)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
