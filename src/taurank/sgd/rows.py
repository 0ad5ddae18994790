"""Row operations: the scores and steps of SGD as plain loops over the columns of the factors.

A step of size η along a sample with gradient g = −dloss/ds descends the loss plus (γ/2)‖·‖² of the rows it scores.
It comes as ``eta_g`` = η g and ``shrink`` = 1 − η γ, and returns the score of the sample that follows in its chain:
where both samples have the same user and share no item row, one loop does both.
"""

from __future__ import annotations

from typing import Any

from taurank._jit import vectorized
from taurank.sgd.losses import f32

WIDE = 128  # columns; in narrower rows two short loops are faster than one with more streams


@vectorized
def pair_score(users: Any, items: Any, u: Any, i: Any, j: Any) -> Any:
    """s_uij = p_u · (q_i − q_j)"""
    return _pair_dot(users[u], items[i], items[j])


@vectorized
def pair_step(users: Any, items: Any, u: Any, i: Any, j: Any, v: Any, k: Any, o: Any, eta_g: Any, shrink: Any) -> Any:
    """Update rows u, i, j; return s_vko."""
    if u == v and k != i and k != j and o != i and o != j and users.shape[1] >= WIDE:
        return _pair_same_user(users[u], items[i], items[j], items[k], items[o], eta_g, shrink)
    _pair_update(users[u], items[i], items[j], eta_g, shrink)
    return _pair_dot(users[v], items[k], items[o])


@vectorized
def point_score(users: Any, items: Any, u: Any, i: Any) -> Any:
    """s_ui = p_u · q_i"""
    return _dot(users[u], items[i])


@vectorized
def point_step(users: Any, items: Any, u: Any, i: Any, v: Any, k: Any, eta_g: Any, shrink: Any) -> Any:
    """Update rows u and i; return s_vk."""
    if u == v and k != i and users.shape[1] >= WIDE:
        return _point_same_user(users[u], items[i], items[k], eta_g, shrink)
    _point_update(users[u], items[i], eta_g, shrink)
    return _dot(users[v], items[k])


@vectorized
def tied_step(
    users: Any, items: Any, u: Any, i: Any, o: Any, v: Any, k: Any, eta_g: Any, shrink: Any, tie: Any
) -> Any:
    """``point_step``, and after the update descend (λ_c/2)‖q_i − q_o‖² with ``tie`` = η λ_c; return s_vk."""
    if u == v and k != i and k != o and users.shape[1] >= WIDE:
        return _tied_same_user(users[u], items[i], items[o], items[k], eta_g, shrink, tie)
    _tied_update(users[u], items[i], items[o], eta_g, shrink, tie)
    return _dot(users[v], items[k])


@vectorized
def _pair_dot(p: Any, a: Any, b: Any) -> Any:
    total = f32(0)
    for c in range(p.size):
        total += p[c] * (a[c] - b[c])
    return total


@vectorized
def _pair_update(p: Any, a: Any, b: Any, eta_g: Any, shrink: Any) -> None:
    for c in range(p.size):
        x, y, z = p[c], a[c], b[c]
        p[c] = shrink * x + eta_g * (y - z)
        a[c] = shrink * y + eta_g * x
        b[c] = shrink * z - eta_g * x


@vectorized
def _pair_same_user(p: Any, a: Any, b: Any, k: Any, o: Any, eta_g: Any, shrink: Any) -> Any:
    total = f32(0)
    for c in range(p.size):
        x, y, z = p[c], a[c], b[c]
        new = shrink * x + eta_g * (y - z)
        p[c] = new
        a[c] = shrink * y + eta_g * x
        b[c] = shrink * z - eta_g * x
        total += new * (k[c] - o[c])
    return total


@vectorized
def _dot(p: Any, a: Any) -> Any:
    total = f32(0)
    for c in range(p.size):
        total += p[c] * a[c]
    return total


@vectorized
def _point_update(p: Any, a: Any, eta_g: Any, shrink: Any) -> None:
    for c in range(p.size):
        x, y = p[c], a[c]
        p[c] = shrink * x + eta_g * y
        a[c] = shrink * y + eta_g * x


@vectorized
def _point_same_user(p: Any, a: Any, k: Any, eta_g: Any, shrink: Any) -> Any:
    total = f32(0)
    for c in range(p.size):
        x, y = p[c], a[c]
        new = shrink * x + eta_g * y
        p[c] = new
        a[c] = shrink * y + eta_g * x
        total += new * k[c]
    return total


@vectorized
def _tied_update(p: Any, a: Any, b: Any, eta_g: Any, shrink: Any, tie: Any) -> None:
    for c in range(p.size):
        x, y, z = p[c], a[c], b[c]
        p[c] = shrink * x + eta_g * y
        new = shrink * y + eta_g * x
        apart = tie * (new - z)
        a[c] = new - apart
        b[c] = z + apart


@vectorized
def _tied_same_user(p: Any, a: Any, b: Any, k: Any, eta_g: Any, shrink: Any, tie: Any) -> Any:
    total = f32(0)
    for c in range(p.size):
        x, y, z = p[c], a[c], b[c]
        own = shrink * x + eta_g * y
        p[c] = own
        new = shrink * y + eta_g * x
        apart = tie * (new - z)
        a[c] = new - apart
        b[c] = z + apart
        total += own * k[c]
    return total
