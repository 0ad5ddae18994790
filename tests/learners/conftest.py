"""The world and the log that most tests of learners use."""

from __future__ import annotations

import pytest

from taurank import Log, World


@pytest.fixture(scope="session")
def world() -> World:
    return World.synthetic(300, 60, random_state=0, effect_spread=1.0)


@pytest.fixture(scope="session")
def log(world: World) -> Log:
    return world.sample(10, random_state=1).log
