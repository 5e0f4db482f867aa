"""The operation in JAX's own words: `jax.lax.scan`, and `jax.grad` for its gradients."""

import jax
import jax.numpy as jnp
import numpy as np

METHODS = ("zoh", "zoh_exact", "foh", "bilinear", "poly", "highorder", "rk4")


def _phis(z):
    """φ₁, φ₂, φ₃: their series where z is small, else their closed forms."""
    small = jnp.abs(z) < 1.0
    near, far = jnp.where(small, z, 0.5), jnp.where(small, 1.0, z)
    series, term = [0.0, 0.0, 0.0], jnp.ones_like(z)
    for k in range(18):
        for j in range(3):
            # zᵏ / (k + j + 1)!
            series[j] = series[j] + term / np.prod(np.arange(k + 1, k + j + 2, dtype=np.float64))
        term = term * near / (k + 1)
    p1 = (jnp.exp(far) - 1) / far
    p2 = (p1 - 1) / far
    p3 = (p2 - 0.5) / far
    return [jnp.where(small, s, p) for s, p in zip(series, (p1, p2, p3))]


def coefficients(method, taylor, a, delta):
    """a and g of a frame; the formulas of the operation's documentation."""
    z = a * delta
    if method == "bilinear":
        q = 1 / (1 - z / 2)
        return (1 + z / 2) * q, delta * q
    gains = {
        "foh": lambda: delta**2 / 2 + a * delta**3 / 6 + a**2 * delta**4 / 24 + a**3 * delta**5 / 120,
        "poly": lambda: delta + (a / 2 + 1 / 4) * delta**2 + (a**2 / 6 + a / 12) * delta**3
        + (a**3 / 24 + a**2 / 48) * delta**4,
        "highorder": lambda: delta + (a / 2 + 1 / 2) * delta**2 + (a**2 / 6 + a / 6 + 1 / 12) * delta**3
        + (a**3 / 24 + a**2 / 24 + a / 48) * delta**4,
    } if taylor else {
        "zoh": lambda: delta * jnp.ones_like(z),
        "zoh_exact": lambda: delta * _phis(z)[0],
        "foh": lambda: delta**2 * _phis(z)[1],
        "poly": lambda: sum(w * p for w, p in zip((delta, delta**2 / 2), _phis(z))),
        "highorder": lambda: sum(w * p for w, p in zip((delta, delta**2, delta**3 / 2), _phis(z))),
        "rk4": lambda: delta * (1 + z / 2 + z**2 / 6 + z**3 / 24),
    }
    return jnp.exp(z), gains[method]()


def _recurrence(a, u, initial):
    """h = a h + u along axis 1, frame by frame: whatever the length, a frame alone is compiled."""
    first = lambda v: jnp.moveaxis(v, 1, 0)
    step = lambda h, frame: 2 * (frame[0] * h + frame[1],)
    return jnp.moveaxis(jax.lax.scan(step, initial, (first(a), first(u)))[1], 0, 1)


def scan(
    x, dt, a, b, c, *, method="zoh", coefficients_="exact", bidirectional=None, reverse=False, d=None, z=None,
    dt_bias=None, dt_softplus=False, dt_limit=None, initial_state=None, seq_idx=None,
):
    """y and the final state."""
    flip = (lambda v: v[:, ::-1]) if reverse else (lambda v: v)
    bidirectional = method == "poly" if bidirectional is None else bidirectional
    delta = dt if dt_bias is None else dt + dt_bias
    delta = jax.nn.softplus(delta) if dt_softplus else delta
    delta = delta if dt_limit is None else jnp.clip(delta, *dt_limit)

    def per_channel(v):
        """b or c as {batch, seq, dim, state}."""
        if v.ndim == 2:
            return v[None, None]
        v = v if v.ndim == 4 else v[:, :, None]
        return flip(jnp.repeat(v, x.shape[2] // v.shape[2], axis=2))

    decay, gain = coefficients(method, coefficients_ == "taylor", a, flip(delta)[..., None])
    u = gain * per_channel(b) * flip(x)[..., None]
    fresh = jnp.zeros(x.shape[:2], bool)
    if seq_idx is not None:
        index = flip(seq_idx)
        fresh = fresh.at[:, 1:].set(index[:, 1:] != index[:, :-1])
    mask = fresh[:, :, None, None]
    initial = jnp.zeros_like(u[:, 0]) if initial_state is None else initial_state
    h = _recurrence(jnp.where(mask, 0, decay), u, initial)
    final = h[:, -1]
    if bidirectional:
        last = jnp.roll(mask, -1, axis=1)[:, ::-1]
        back = _recurrence(jnp.where(last, 0, decay[:, ::-1]), u[:, ::-1], jnp.zeros_like(initial))[:, ::-1]
        h = (h + back) / 2
    y = jnp.sum(per_channel(c) * h, axis=-1)
    y = 2 * y.real if jnp.iscomplexobj(y) else y
    y = flip(y)
    y = y if d is None else y + d * x
    y = y if z is None else y * jax.nn.silu(z)
    return y, final
