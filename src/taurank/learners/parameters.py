"""Hyper-parameters: the fields of a learner's dataclass."""

from __future__ import annotations

import json
from dataclasses import Field, fields
from typing import Any, ClassVar, Self

import numpy as np

from taurank.errors import InputError


class Parameters:
    """What a dataclass of hyper-parameters can do: show them, change them, write them down."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments, as scikit-learn's ``clone`` expects them."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.init}

    def set_params(self, **params: Any) -> Self:
        """Change hyper-parameters; a wrong one is refused and nothing changes."""
        known = self.get_params()
        if unknown := sorted(params.keys() - known.keys()):
            raise InputError(
                f"{type(self).__name__} has no hyper-parameter '{unknown[0]}'; it has {', '.join(sorted(known))}."
            )
        type(self)(**{**known, **params})
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def hyper_parameters(self) -> dict[str, Any]:
        """``get_params`` with plain Python numbers, ready for JSON."""
        params = self.get_params()
        return {name: value.item() if isinstance(value, np.generic) else value for name, value in params.items()}

    def storable_parameters(self) -> dict[str, Any]:
        """The hyper-parameters as JSON can hold them; a Generator cannot be stored and becomes None."""
        params = self.hyper_parameters()
        params = {name: None if isinstance(value, np.random.Generator) else value for name, value in params.items()}
        for name, value in params.items():
            try:
                json.dumps(value, allow_nan=False)
            except (TypeError, ValueError) as error:
                raise InputError(f"'{name}' of {type(self).__name__} cannot be stored in a file: {error}.") from error
        return params
