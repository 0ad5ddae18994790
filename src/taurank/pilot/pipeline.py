"""From a shop's tables to a decision.

Tables → log → propensities → gate → earlier periods train, later periods measure → one estimate of all rankings → the
answer → the chosen learner fitted to everything. Each stage is stored, see ``stages``.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taurank._progress import Progress
from taurank.data.files import find_files, write_text
from taurank.data.log import Log
from taurank.errors import InputError, OverlapWarning
from taurank.estimation import gains, propensity
from taurank.evaluation.evaluate import evaluate
from taurank.evaluation.measurement import Measurement
from taurank.evaluation.results import Comparison
from taurank.learners import LEARNERS, Learner, Popular, load
from taurank.pilot.answer import TODAY, Pilot, decide, unknown
from taurank.pilot.categories import Ranking, WithinCategories, learner_of
from taurank.pilot.config import PilotConfig
from taurank.pilot.gate import check_gate
from taurank.pilot.stages import Stages, key_of
from taurank.pilot.tables import SmallTables


def run(
    plan: str | os.PathLike[str] | Mapping[str, Any],
    out: str | os.PathLike[str],
    *,
    threads: int | None = None,
    show_progress: bool | None = None,
) -> Pilot:
    """Run a pilot: ``plan`` is a TOML file (or its content as a mapping), ``out`` the folder of the result.

    The same call continues where a killed one stopped, and repeats only what a changed plan or table changes. The
    result depends on the tables, the plan and its seed alone, not on ``threads``.
    """
    if isinstance(plan, Mapping):
        config, text = PilotConfig.from_sections(plan), ""
    else:
        config, text = PilotConfig.read(plan), Path(plan).read_text(encoding="utf-8")
    small = SmallTables.read(config)
    with Progress(show_progress, lines=True) as progress:
        stages = Stages(Path(out) / "stages", progress)
        progress.begin("stages", 5 + len(config.pilot.learners))
        result = _Run(config, small, Path(out), stages, threads).result()
        _write_outputs(result, text, threads)
        progress.step("report")
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
        log = self.stages.run("log", key, ".parquet", lambda path: self._checked(self._read()).write(path), Log.read)
        self._checked(log)  # a stored stage, too: today's ranking may have changed
        key = key_of(key, options.propensity, options.seed)
        log = self.stages.run(
            "propensity", key, ".parquet", lambda path: self._with_propensity(log).write(path), Log.read
        )
        train, test = log.split(share=options.test_share)
        gate = check_gate(log, self.small.categories)
        if gate.refuses:  # nothing that is learned from such a log could be measured
            anyway = self._bought_anyway({"popular": Popular().fit(train)}, test)
            answer = unknown(config, gate.sentence, "record the propensities of what is shown", log, anyway)
            return Pilot(answer, None, gate, {}, None, config, log, test, self.folder)
        early = key_of(key, options.test_share)
        rankings = {name: self._fitted("model", name, early, train) for name in options.learners}
        compared = self._compare(rankings, test)
        self.stages.progress.step("estimates")
        answer = decide(config, compared, log, lambda: self._bought_anyway(rankings, test))
        model = self._fitted("refit", answer.choice, key, log) if answer.choice in rankings else None
        return Pilot(answer, compared, gate, rankings, model, config, log, test, self.folder)

    def _read(self) -> Log:
        tables = self.config.tables
        if tables.log is not None:
            return Log.read(tables.log)
        named = tables.named()
        optional: dict[str, Any] = {name: named[name] for name in ("visits", "candidates") if name in named}
        columns = {key.replace("purchases.", "outcomes."): name for key, name in self.config.columns.items()}
        return Log.from_events(
            named["impressions"], named["purchases"], columns=columns, threads=self.threads, **optional,
            **self.config.log.model_dump(exclude_none=True),
        )  # fmt: skip

    def _checked(self, log: Log) -> Log:
        if log.n_times < 2:
            raise InputError(
                "a pilot needs at least two periods, earlier ones to learn from and later ones to measure."
            )
        self.small.check(log, self.config)
        return log

    def _with_propensity(self, log: Log) -> Log:
        """Recorded propensities are kept, missing ones estimated; the exposure model knows the users' categories."""
        if not log.n_without_propensity:
            return log
        model, categories = self.config.pilot.propensity, self.small.categories
        features = categories if model == "exposure" else None
        return propensity.estimate(log, self.config.pilot.seed, model=model, features=features, threads=self.threads)

    def _fitted(self, stage: str, name: str, key: str, log: Log) -> Ranking:
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
        return model if self.small.categories is None else WithinCategories(model, self.small.categories)

    def _compare(self, rankings: Mapping[str, Any], test: Log) -> Comparison:
        """All rankings on the last periods, today's first if there is one."""
        today, options = {} if self.small.today is None else {TODAY: self.small.today}, self.config.pilot
        with warnings.catch_warnings():  # the verdicts say it
            warnings.simplefilter("ignore", OverlapWarning)
            table: Comparison = evaluate(
                {**today, **rankings}, test, [options.metric], by=self.small.segments, level=options.level,
                detail=True, unlisted="last" if today else None, threads=self.threads,
            )  # fmt: skip
        return table

    def _bought_anyway(self, rankings: Mapping[str, Any], test: Log) -> float:
        """How many of a list's items are bought without help: the most of any ranking's list, shown or not."""
        k = self.config.pilot.k
        bought = Measurement.prepare(gains.outcome(test), f"P@{k}")
        return k * max(bought.means(one, self.threads)[f"P@{k}"] for one in rankings.values())


def _write_outputs(result: Pilot, plan: str, threads: int | None) -> None:
    if plan:
        write_text(result.folder / "pilot.toml", plan)
    recommendations, model = result.folder / "recommendations.parquet", result.folder / "model"
    if result.model is None:  # what an earlier run left is not the answer any more
        recommendations.unlink(missing_ok=True)
        model.unlink(missing_ok=True)
    else:
        learner_of(result.model).save(model)
        k = result.config.pilot.k
        result.model.write_recommendations(recommendations, k=k, candidates=result.log, threads=threads)
    from taurank.pilot.report import write_report  # needs the extra ``report``

    write_report(result, plan)
