"""The shared helpers: argument checks, messages, and kernels without a cache folder."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numba
import numpy as np
import pytest

from taurank import _jit
from taurank._checks import (
    Range,
    check_choice,
    check_instance,
    check_integer,
    check_number,
    check_parameters,
    generator,
)  # fmt: skip
from taurank.errors import InputError, MissingExtra, missing_extra, show


@pytest.mark.parametrize("value", [0, -1, 1.0, "1", None, True, 10**400, float("nan"), [1], np.array([1])])
def test_odd_integers_are_refused(value: Any) -> None:
    with pytest.raises(InputError, match=r"^k must be an integer ≥ 1, got .*\.$"):
        check_integer("k", value)


@pytest.mark.parametrize("value", [1.5, -0.5, "1", None, False, 10**400, float("nan"), float("inf"), [0.5]])
def test_odd_numbers_are_refused(value: Any) -> None:
    with pytest.raises(InputError, match=r"^cap must be a number between 0 and 1, got .*\.$"):
        check_number("cap", value, 0, 1)
    if value != 1.5:
        with pytest.raises(InputError, match=r"^cap must be a number ≥ 0, got .*\.$"):
            check_number("cap", value, 0)


def test_an_integer_of_many_digits_is_refused() -> None:
    with pytest.raises(InputError, match="k must be an integer ≥ 1, got a int out of range"):
        check_integer("k", 10**5000)


def test_numbers_of_numpy_are_numbers() -> None:
    assert check_integer("k", np.int8(3)) == 3
    check_number("cap", np.float32(0.5), 0, 1)


@pytest.mark.parametrize("value", ["x", None, ["a"], {}])
def test_a_choice_names_the_choices(value: Any) -> None:
    assert check_choice("arm", "a", ["a", "b"]) == "a"
    with pytest.raises(InputError, match="arm must be one of 'a', 'b', got"):
        check_choice("arm", value, ["a", "b"])


@pytest.mark.parametrize("seed", [-1, 1.5, "1", True])
def test_odd_seeds_are_refused_and_long_ones_are_not(seed: Any) -> None:
    with pytest.raises(InputError, match="random_state must be"):
        generator(seed)
    assert generator(2**100).random() == np.random.default_rng(2**100).random()


def test_an_instance_of_another_type_says_how_to_make_one() -> None:
    with pytest.raises(InputError, match=r"log must be a int, got a str; make one with int\(\)"):
        check_instance("log", "1", int, "int()")


def test_no_message_carries_control_characters() -> None:
    assert str(InputError("column 'a\x1b[31m\x07b'")) == r"column 'a\u001b[31m\u0007b'"
    assert "\x9b" not in show("\x9b")


def test_a_missing_extra_names_both_commands() -> None:
    error = missing_extra("altair", "report")
    assert isinstance(error, MissingExtra)
    assert 'pip install "taurank[report]"' in str(error)
    assert 'pip install ".[report]"' in str(error)
    assert str(missing_extra("a", "b", "do without")).endswith(", or do without.")


class TestKernelCache:
    def test_without_a_folder_kernels_are_compiled_in_memory_with_one_warning(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(_jit, "_warned", False)
        add, same = eval("lambda a, b: a + b"), eval("lambda a: a")  # without a file Numba finds no folder
        with pytest.raises(RuntimeError, match="cannot cache function"):
            numba.njit(cache=True)(add)
        with pytest.warns(RuntimeWarning, match="NUMBA_CACHE_DIR") as caught:
            compiled = [_jit.cached_njit(function) for function in (add, same)]
        assert compiled[0](1, 2) == 3
        assert len(caught) == 1

    def test_other_errors_of_the_compiler_are_not_swallowed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(**options: Any) -> Any:
            raise RuntimeError("something else")

        monkeypatch.setattr(numba, "njit", fail)
        with pytest.raises(RuntimeError, match="something else"):
            _jit.cached_njit(lambda: None)


@pytest.mark.parametrize(
    ("allowed", "fine", "refused", "message"),
    [
        (Range(0, 1), (0, 0.5, 1), (-1, 1.1, None, True), "share must be a number between 0 and 1"),
        (Range(0, above=True), (1e-9,), (0,), "share must be larger than 0"),
        (Range(1, integer=True, optional=True), (None, 3), (0, 2.5), "share must be an integer ≥ 1"),
        (("some", "all"), ("some",), ("none", None), "share must be one of 'some', 'all'"),
    ],
)
def test_parameters_are_checked_by_a_table(allowed: Any, fine: Any, refused: Any, message: str) -> None:
    for value in fine:
        check_parameters(SimpleNamespace(share=value), {"share": allowed})
    for value in refused:
        with pytest.raises(InputError, match=message):
            check_parameters(SimpleNamespace(share=value), {"share": allowed})
