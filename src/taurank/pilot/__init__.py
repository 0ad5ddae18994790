"""From a shop's tables to a decision: ``run`` a pilot, or compute the ``power`` of an experiment."""

from taurank.pilot.answer import Pilot
from taurank.pilot.pipeline import run
from taurank.pilot.power import ExperimentDesign, power

__all__ = ["ExperimentDesign", "Pilot", "power", "run"]
