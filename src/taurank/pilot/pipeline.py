"""From a shop's tables to a decision.

Tables → log → propensities → gate → earlier periods train, later periods measure → one estimate of all rankings → the
answer → the chosen learner fitted to everything. Each stage is stored, see ``Stages``.

A plain export has no table of visits, and none of the categories that a user can be shown. Both are then derived
from what was shown, unless the propensities fit better without.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from taurank import __version__
from taurank._progress import Progress
from taurank.data.files import find_files, write_text
from taurank.data.log import Log
from taurank.errors import InputError, OverlapWarning
from taurank.estimation import gains, propensity
from taurank.estimation.propensity.calibration import Total
from taurank.evaluation.curves import effect_curve
from taurank.evaluation.evaluate import evaluate
from taurank.evaluation.measurement import Measurement
from taurank.evaluation.results import Comparison
from taurank.learners import LEARNERS, Learner, Popular, load
from taurank.pilot.answer import TODAY, Pilot, Setting, decide, unknown
from taurank.pilot.categories import Categories, Ranking, WithinCategories, derived, learner_of
from taurank.pilot.config import PilotConfig
from taurank.pilot.tables import SmallTables
from taurank.report.diagnosis import Diagnosis, diagnose

T = TypeVar("T")

# what stages take in relation to each other, in seconds, with 5 M impressions of 120,000 users and 3,000 items
SECONDS: dict[str, float] = {
    "log": 10.0, "propensity": 25.0, "model-popular": 8.0, "model-empiricalbayes": 45.0, "model-bpr": 70.0,
    "model-dlce": 40.0, "estimates": 17.0, "refit": 28.0, "report": 9.0,
}  # fmt: skip
SLOW = 60.0  # other learners


def run(
    plan: str | os.PathLike[str] | Mapping[str, Any],
    out: str | os.PathLike[str],
    *,
    more: Mapping[str, Any] = {},
    threads: int | None = None,
    show_progress: bool | None = None,
) -> Pilot:
    """Run a pilot: from a shop's tables to an answer and ``report.html``.

    The same call continues where a killed one stopped, and repeats only what a changed plan or table changes. The
    result depends on the tables, the plan and its seed alone.

    Parameters
    ----------
    plan : a TOML file (or its content as a mapping, or a folder with the tables)
    out : the folder of the result
    more : sections that are added to those of the plan, such as columns
    """
    config = PilotConfig.read(plan, more)
    text = "" if isinstance(plan, Mapping) or Path(plan).is_dir() else Path(plan).read_text(encoding="utf-8")
    small = SmallTables.read(config)
    with Progress(show_progress, lines=True) as progress:
        models = [f"model-{name}" for name in config.pilot.learners]
        names = ["log", "propensity", *models, "estimates", "refit", "report"]
        stages = Stages(Path(out) / "stages", progress, names)
        result = _Run(config, small, Path(out), stages, threads).result()
        stages.skip(*names[2:-1])
        _write_outputs(result, text, threads)
        stages.end("report")
    return result


@dataclass(frozen=True)
class _Run:
    config: PilotConfig
    small: SmallTables
    folder: Path
    stages: Stages
    threads: int | None

    def result(self) -> Pilot:
        config, options = self.config, self.config.pilot
        used = [path for name, path in config.tables.named().items() if name not in ("users", "today")]
        files = [(str(file.resolve()), file.stat()) for path in used for file in find_files(path)]
        facts = [[name, about.st_size, about.st_mtime_ns] for name, about in files]  # what changes when a file does
        key = key_of(facts, dict(config.columns), config.log.model_dump())
        self._check(log := self.stages.run("log", key, ".parquet", self._write_log, Log.read))  # a stored one, too
        shows, caution = json.loads((self.stages.folder / f"log-{key}.json").read_text())
        notes = [caution] if caution else []
        if config.tables.visits is None and log.eligibility.has_visits and config.tables.log is None:
            notes.append("No table of visits: a user counts in the periods in which something was shown.")
        is_recorded = log.n_without_propensity < len(log) / 2
        categories = None
        if self.small.categories is not None:
            categories = Categories.of(self.small.categories, log)
        elif not is_recorded:  # what is estimated depends on what could have been shown
            categories = self._derived(log)
        key = key_of(key, options.propensity, options.seed, options.test_share)
        log = self.stages.run(
            "propensity", key, ".parquet", lambda path: self._with_propensity(log, categories).write(path), Log.read
        )
        train, test = log.split(share=options.test_share)
        gate = _diagnosis(log, test, categories)
        if gate.level == "poor" and categories is None:
            categories = self._derived(log)
            gate = gate if categories is None else _diagnosis(log, test, categories)
        if categories is not None and categories.are_derived:
            known = categories.own.any(axis=1)
            notes.append(
                f"No table of categories: {categories.sentence} The estimate leaves out the "
                f"{np.count_nonzero(~known):,} users who were shown too little before the measured periods."
            )
            test = test.select(users=test.users.values.filter(pa.array(known)))
        setting = Setting(config, log, test, categories, shows, tuple(notes))
        if gate.level == "poor":  # nothing that is learned from such a log could be measured
            anyway = self._bought_anyway({"popular": Popular().fit(train)}, test)
            answer = unknown(setting, gate.verdict, self._advice(gate, is_recorded), anyway)
            return Pilot(answer, None, gate, {}, None, setting, self.folder)
        rankings = {name: self._fitted("model", name, key, train, categories) for name in options.learners}
        compared = self._compare(rankings, test)
        self.stages.end("estimates")
        answer = decide(setting, compared, lambda: self._bought_anyway(rankings, test))
        model = None
        if answer.choice in rankings:
            model = self._fitted("refit", answer.choice, key, log, categories)
        best = rankings.get(answer.choice or "", self.small.today or next(iter(rankings.values())))
        depths = [k for k in (1, 2, 3, 5, 10, 20) if k <= max(options.k, 10) and k <= log.n_items]
        curve = effect_curve(best, test, by="k", points=depths, level=options.level, threads=self.threads)
        items = self.small.item_segments
        by_items = None if items is None else self._compare(rankings, test, items)
        return Pilot(answer, compared, gate, rankings, model, setting, self.folder, curve, by_items)

    def _write_log(self, path: Path) -> None:
        """The log, and beside it how often what is shown in a period is shown in it."""
        self._check(log := self._read())
        counts = {} if log.summary is None else log.summary.impressions
        shows = 1.0 + counts.get("repeated", 0) / counts["treated"] if counts.get("treated") else None
        write_text(path.with_suffix(".json"), json.dumps([shows, log.summary and log.summary.caution]))
        log.write(path)

    def _read(self) -> Log:
        tables, options = self.config.tables, self.config.log.model_dump(exclude_none=True)
        if tables.log is not None:
            return Log.read(tables.log)
        named = tables.named()
        columns = {key.replace("purchases.", "outcomes."): name for key, name in self.config.columns.items()}
        limits: dict[str, Any] = {name: named[name] for name in ("visits", "candidates") if name in named}

        def build(limits: dict[str, Any]) -> Log:
            return Log.from_events(
                named["impressions"], named["purchases"], columns=columns, threads=self.threads, **limits, **options
            )

        if tables.visits is not None:
            return build(limits)
        plain = dict(columns)
        for column in ("user_id", "timestamp"):
            if theirs := columns.get(f"impressions.{column}", columns.get(column)):
                columns[f"visits.{column}"] = theirs
        log = build({**limits, "visits": named["impressions"]})
        shown = np.flatnonzero(log.treated == 1)
        p = np.full(len(shown), np.nan) if log.propensity is None else log.propensity[shown]
        known = p[~np.isnan(p)]
        total = Total.of("treated", log.cells * len(known) / max(1, len(shown)), known)
        if len(known) and total.ratio > 1 and total.is_far():  # users to whom nothing was shown count, too
            columns = plain
            log = build(limits)
        return log

    def _derived(self, log: Log) -> Categories | None:
        """From the earlier periods alone: the later ones measure what is made of them."""
        train, _ = log.split(share=self.config.pilot.test_share)
        return derived(train, self.small.item_categories, self.config.pilot.seed)

    def _advice(self, gate: Diagnosis, is_recorded: bool) -> str:
        """What is missing: a table of what could have been shown, or the propensities."""
        total = gate.treated_total
        missing = {
            "visits": "when each user came: user_id, timestamp", "candidates": "what could be shown: item_id",
            "categories": "what each user can be shown: user_id, category; candidates then need a category",
        }  # fmt: skip
        lacking = [name for name in missing if getattr(self.config.tables, name) is None]
        if is_recorded and total.is_far() and total.ratio < 1 and lacking:
            return f"add the table {lacking[0]} to the plan ({missing[lacking[0]]})"
        return "record the propensities of what is shown" if not is_recorded else gate.advice[0].rstrip(".")

    def _check(self, log: Log) -> None:
        if log.n_times < 2:
            raise InputError(
                "a pilot needs at least two periods, earlier ones to learn from and later ones to measure."
            )
        self.small.check(log, self.config)

    def _with_propensity(self, log: Log, categories: Categories | None) -> Log:
        """Recorded propensities are kept, missing ones estimated; the exposure model knows the users' categories."""
        if not log.n_without_propensity:
            return log
        model = self.config.pilot.propensity
        features = None if categories is None or model != "exposure" else categories.features
        return propensity.estimate(log, self.config.pilot.seed, model=model, features=features, threads=self.threads)

    def _fitted(self, stage: str, name: str, key: str, log: Log, categories: Categories | None) -> Ranking:
        """A learner with its own defaults, fitted to a log; its lists stay within the users' categories."""
        options = self.config.pilot
        learner = LEARNERS[name]()
        wanted = {"random_state": options.seed, "epochs": options.epochs, "threads": self.threads}
        known = learner.get_params()
        learner.set_params(**{key: value for key, value in wanted.items() if key in known and value is not None})
        settings = {key: value for key, value in learner.get_params().items() if key != "threads"}

        def make(path: Path) -> None:
            learner.fit(log, show_progress=False).save(path)

        model: Learner = self.stages.run(f"{stage}-{name}", key_of(key, name, settings), ".model", make, load)
        return model if categories is None else WithinCategories(model, categories)

    def _compare(self, rankings: Mapping[str, Any], test: Log, items: Any = None) -> Comparison:
        """All rankings on the last periods, today's first if there is one; by segments of users, or of ``items``."""
        today, options = {} if self.small.today is None else {TODAY: self.small.today}, self.config.pilot
        with warnings.catch_warnings():  # the verdicts say it
            warnings.simplefilter("ignore", OverlapWarning)
            table: Comparison = evaluate(
                {**today, **rankings}, test, [options.metric], by=self.small.segments if items is None else items,
                level=options.level, detail=True, unlisted="last" if today else None, threads=self.threads,
            )  # fmt: skip
        return table

    def _bought_anyway(self, rankings: Mapping[str, Any], test: Log) -> float:
        """How many of a list's items are bought without help: the most of any ranking's list, shown or not."""
        k = self.config.pilot.k
        bought = Measurement.prepare(gains.outcome(test), f"P@{k}")
        return k * max(bought.means(one, self.threads)[f"P@{k}"] for one in rankings.values())


def _diagnosis(log: Log, test: Log, categories: Categories | None) -> Diagnosis:
    """Of the cells that could be shown; of derived categories, by the periods from which they were not derived."""
    if categories is None:
        return diagnose(log)
    return diagnose(test if categories.are_derived else log, categories=categories.features)


def _write_outputs(result: Pilot, plan: str, threads: int | None) -> None:
    if plan:
        write_text(result.folder / "pilot.toml", plan)
    recommendations, model = result.folder / "recommendations.parquet", result.folder / "model"
    if result.model is None:  # what an earlier run left is not the answer any more
        recommendations.unlink(missing_ok=True)
        model.unlink(missing_ok=True)
    else:
        learner_of(result.model).save(model)
        k = result.setting.config.pilot.k
        result.model.write_recommendations(recommendations, k=k, candidates=result.setting.log, threads=threads)
    from taurank.pilot.report import write_report  # needs the extra ``report``

    write_report(result, plan)


class Stages:
    """The folder of a pilot's stages, and the line of progress for each of them; ``names`` are all that follow.

    A stage is named by a hash of its inputs: settings, the names of earlier stages, and size and time of change of
    the files that are read. A killed pilot continues after its last complete stage; a changed plan repeats only what
    it changes.
    """

    def __init__(self, folder: Path, progress: Progress, names: Sequence[str]) -> None:
        self.folder, self.progress, self.names = folder, progress, list(names)
        self.spent = self.cost = 0.0  # seconds, and what they were expected to be
        self.began = time.monotonic()
        folder.mkdir(parents=True, exist_ok=True)
        progress.begin("stages", len(self.names))

    def run(self, name: str, key: str, suffix: str, make: Callable[[Path], Any], read: Callable[[Path], T]) -> T:
        """The result of a stage: read if its file exists, else made, written to the file, and read."""
        path = self.folder / f"{name}-{key}{suffix}"
        done = path.exists()
        if not done:
            try:
                make(path)
            except InputError:  # refused tables leave nothing behind
                with suppress(OSError):
                    self.folder.rmdir()
                    self.folder.parent.rmdir()
                raise
        result = read(path)
        self.end(name, done)
        return result

    def end(self, name: str, done_before: bool = False) -> None:
        """Say that a stage is done, and how long the others take if they are as slow as those before."""
        now, known = time.monotonic(), next(each for each in self.names if name.startswith(each))
        if not done_before:
            self.spent, self.cost = self.spent + now - self.began, self.cost + SECONDS.get(known, SLOW)
        self.began = now
        self.names.remove(known)
        left = sum(SECONDS.get(each, SLOW) for each in self.names) * self.spent / self.cost if self.cost else 0.0
        text = f"{name}{' (done before)' if done_before else ''}"
        steps = self.progress.total - len(self.names) - self.progress.count  # skipped ones, too
        self.progress.step(f"{text}, about {left / 60:.1f} min left" if left >= 3.0 else text, steps)

    def skip(self, *names: str) -> None:
        """These are not needed."""
        self.names = [name for name in self.names if name not in names]


def key_of(*parts: Any) -> str:
    """A short name of everything a stage depends on."""
    text = json.dumps([__version__, *parts], sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
