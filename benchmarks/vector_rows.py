"""The row operations as hand-written LLVM instructions: what the plain loops of ``taurank.sgd.rows`` replaced.

``learn.py rows`` trains with both and prints the ratio; the plain loops stay as long as these gain less than 15 % of
a whole epoch at d >= 200. One sweep of eight floats at a time updates the rows of one sample and scores the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from taurank._jit import inlined

WIDTH = 8  # floats per vector; the number of columns of a factor table is a multiple of it

_FLOAT = ir.FloatType()
_INT = ir.IntType(64)
_LANE = ir.IntType(32)
_VECTOR = ir.VectorType(_FLOAT, WIDTH)
_ZERO = ir.Constant(_VECTOR, [0.0] * WIDTH)
_UNDEFINED = ir.Constant(_VECTOR, ir.Undefined)

_Value = Any  # an LLVM value; llvmlite has no type hints


@inlined
def pair_step(users: Any, items: Any, u: Any, i: Any, j: Any, v: Any, k: Any, o: Any, eta_g: Any, shrink: Any) -> Any:
    """Update rows u, i, j; return s_vko."""
    if u == v:
        return _pair_same_user(users, items, u, i, j, v, k, o, eta_g, shrink)
    return _pair_other_user(users, items, u, i, j, v, k, o, eta_g, shrink)


@intrinsic  # type: ignore[untyped-decorator]
def pair_score(context: Any, users: Any, items: Any, u: Any, i: Any, j: Any) -> Any:
    """s_uij = p_u . (q_i - q_j)."""
    return _signature(users, items, 3, 0), _generator(3, None)


@intrinsic  # type: ignore[untyped-decorator]
def _pair_other_user(
    context: Any, users: Any, items: Any, u: Any, i: Any, j: Any,
    v: Any, k: Any, o: Any, eta_g: Any, shrink: Any,
) -> Any:  # fmt: skip
    """Update rows u, i, j; return s_vko. eta_g = eta * (-dloss/ds), shrink = 1 - eta * gamma."""
    return _signature(users, items, 6, 2), _generator(3, _step_pair)


@intrinsic  # type: ignore[untyped-decorator]
def _pair_same_user(
    context: Any, users: Any, items: Any, u: Any, i: Any, j: Any,
    v: Any, k: Any, o: Any, eta_g: Any, shrink: Any,
) -> Any:  # fmt: skip
    """The same for v = u: the user's new row is scored from the register it was made in."""
    return _signature(users, items, 6, 2), _generator(3, _step_pair, stay=True)


@intrinsic  # type: ignore[untyped-decorator]
def point_score(context: Any, users: Any, items: Any, u: Any, i: Any) -> Any:
    """s_ui = p_u . q_i."""
    return _signature(users, items, 2, 0), _generator(2, None)


@intrinsic  # type: ignore[untyped-decorator]
def point_step(context: Any, users: Any, items: Any, u: Any, i: Any, v: Any, k: Any, eta_g: Any, shrink: Any) -> Any:
    """Update rows u and i; return s_vk."""
    return _signature(users, items, 4, 2), _generator(2, _step_point)


@inlined
def tied_step(
    users: Any, items: Any, u: Any, i: Any, o: Any, v: Any, k: Any, eta_g: Any, shrink: Any, tie: Any
) -> Any:
    """Update rows u and i, tie rows i and o; return s_vk."""
    ahead = point_step(users, items, u, i, v, k, eta_g, shrink)
    _tie_step(items, i, o, tie)
    return ahead


@intrinsic  # type: ignore[untyped-decorator]
def _tie_step(context: Any, items: Any, i: Any, o: Any, tie: Any) -> Any:
    """Draw rows i and o together: each moves by tie * (the other - itself)."""

    def generate(context: Any, builder: Any, signature: Any, args: Sequence[_Value]) -> _Value:
        items, i, o, tie = args
        one, other = (_row(context, builder, signature.args[0], items, row) for row in (i, o))
        tie = _splat(builder, tie)
        with _sweep(context, builder, signature.args[0], items) as offset:
            a, b = _load(builder, one, offset), _load(builder, other, offset)
            apart = builder.fsub(a, b)
            _store(builder, _fma(builder, builder.fneg(tie), apart, a), one, offset)
            _store(builder, _fma(builder, tie, apart, b), other, offset)
        return context.get_dummy_value()

    return types.none(items, types.uint64, types.uint64, types.float32), generate


# What a step does to eight columns: (vectors of the sample, eta_g, shrink) -> new vectors.


def _step_pair(builder: Any, rows: Sequence[_Value], eta_g: _Value, shrink: _Value) -> list[_Value]:
    p, a, b = rows
    lift = builder.fmul(eta_g, p)
    return [
        _fma(builder, eta_g, builder.fsub(a, b), builder.fmul(shrink, p)),
        _fma(builder, shrink, a, lift),
        _fma(builder, shrink, b, builder.fneg(lift)),
    ]


def _step_point(builder: Any, rows: Sequence[_Value], eta_g: _Value, shrink: _Value) -> list[_Value]:
    p, a = rows
    return [
        _fma(builder, eta_g, a, builder.fmul(shrink, p)),
        _fma(builder, shrink, a, builder.fmul(eta_g, p)),
    ]


def _generator(size: int, update: Callable[..., list[_Value]] | None, stay: bool = False) -> Callable[..., _Value]:
    """Code that updates one sample of `size` rows (if a step is given) and scores the following one."""

    def generate(context: Any, builder: Any, signature: Any, args: Sequence[_Value]) -> _Value:
        tables = [0] + [1] * (size - 1)
        count = size if update is None else 2 * size
        rows = [
            _row(context, builder, signature.args[tables[n % size]], args[tables[n % size]], row)
            for n, row in enumerate(args[2 : 2 + count])
        ]
        scales = [_splat(builder, scale) for scale in args[2 + count :]]
        total = cgutils.alloca_once(builder, _VECTOR)
        builder.store(_ZERO, total)
        with _sweep(context, builder, signature.args[0], args[0]) as offset:
            new: list[_Value] = []
            if update is not None:
                now = [_load(builder, row, offset) for row in rows[:size]]
                new = update(builder, now, *scales)
                for vector, row in zip(new, rows[:size], strict=True):
                    _store(builder, vector, row, offset)
            # Loaded after the stores: a row that both samples share is seen with its new values.
            following = new[:1] if stay else [_load(builder, rows[-size], offset)]
            following += [_load(builder, row, offset) for row in rows[1 - size :]]
            builder.store(_dot(builder, following, builder.load(total)), total)
        return _sum(builder, builder.load(total))

    return generate


def _dot(builder: Any, rows: Sequence[_Value], total: _Value) -> _Value:
    right = rows[1] if len(rows) == 2 else builder.fsub(rows[1], rows[2])
    return _fma(builder, rows[0], right, total)


def _sum(builder: Any, vector: _Value) -> _Value:
    for shift in (4, 2, 1):
        lanes = [(lane + shift) % WIDTH for lane in range(WIDTH)]
        mask = ir.Constant(ir.VectorType(_LANE, WIDTH), lanes)
        vector = builder.fadd(vector, builder.shuffle_vector(vector, _UNDEFINED, mask))
    return builder.extract_element(vector, ir.Constant(_LANE, 0))


def _signature(users: Any, items: Any, rows: int, scales: int) -> Any:
    return types.float32(users, items, *[types.uint64] * rows, *[types.float32] * scales)


def _sweep(context: Any, builder: Any, kind: Any, table: _Value) -> Any:
    columns = cgutils.unpack_tuple(builder, _array(context, builder, kind, table).shape, 2)[1]
    return _Columns(builder, columns)


class _Columns:
    """A loop over the columns, eight at a time; yields the column it is at."""

    def __init__(self, builder: Any, columns: _Value) -> None:
        start, step = ir.Constant(_INT, 0), ir.Constant(_INT, WIDTH)
        self.loop = cgutils.for_range_slice(builder, start, columns, step, _INT)

    def __enter__(self) -> _Value:
        return self.loop.__enter__()[0]

    def __exit__(self, *error: object) -> None:
        self.loop.__exit__(*error)


def _place(builder: Any, row: _Value, offset: _Value) -> _Value:
    return builder.bitcast(builder.gep(row, [offset]), _VECTOR.as_pointer())


def _load(builder: Any, row: _Value, offset: _Value) -> _Value:
    return builder.load(_place(builder, row, offset), align=4)


def _store(builder: Any, vector: _Value, row: _Value, offset: _Value) -> None:
    builder.store(vector, _place(builder, row, offset), align=4)


def _splat(builder: Any, scalar: _Value) -> _Value:
    first = builder.insert_element(_UNDEFINED, scalar, ir.Constant(_LANE, 0))
    mask = ir.Constant(ir.VectorType(_LANE, WIDTH), [0] * WIDTH)
    return builder.shuffle_vector(first, _UNDEFINED, mask)


def _fma(builder: Any, a: _Value, b: _Value, c: _Value) -> _Value:
    name = "llvm.fma.f32" if a.type == _FLOAT else f"llvm.fma.v{WIDTH}f32"
    kind = ir.FunctionType(a.type, [a.type] * 3)
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [a, b, c])


def _row(context: Any, builder: Any, kind: Any, table: _Value, row: _Value) -> _Value:
    array = _array(context, builder, kind, table)
    columns = cgutils.unpack_tuple(builder, array.shape, 2)[1]
    return builder.gep(array.data, [builder.mul(row, columns)])


def _array(context: Any, builder: Any, kind: Any, value: _Value) -> Any:
    return context.make_array(kind)(context, builder, value)
