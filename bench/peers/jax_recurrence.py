"""The recurrence as JAX can say it: by its associative scan, by Hillis and Steele's, and one frame after another.

And inputs for it.
"""

import jax
import jax.numpy as jnp


def terms(x, dt, a, b):
    """Decay and drive, {batch, seq, dim, state}."""
    return jnp.exp(dt[..., None] * a), (dt * x)[..., None] * b[:, :, None, :]


def associative(x, dt, a, b, c):
    combine = lambda left, right: (left[0] * right[0], right[0] * left[1] + right[1])
    _, h = jax.lax.associative_scan(combine, terms(x, dt, a, b), axis=1)
    return (h * c[:, :, None, :]).sum(-1)


def hillis_steele(x, dt, a, b, c):
    decay, h = terms(x, dt, a, b)
    distance = 1
    while distance < x.shape[1]:
        before = lambda values, fill: jnp.pad(
            values[:, :-distance], ((0, 0), (distance, 0), (0, 0), (0, 0)), constant_values=fill
        )
        decay, h = decay * before(decay, 1), h + decay * before(h, 0)
        distance *= 2
    return (h * c[:, :, None, :]).sum(-1)


def sequential(x, dt, a, b, c):
    def step(h, frame):
        x, dt, b, c = frame
        h = jnp.exp(dt[..., None] * a) * h + (dt * x)[..., None] * b[:, None, :]
        return h, (h * c[:, None, :]).sum(-1)

    h = jnp.zeros((x.shape[0], *a.shape), x.dtype)
    _, y = jax.lax.scan(step, h, tuple(m.swapaxes(0, 1) for m in (x, dt, b, c)))
    return y.swapaxes(0, 1)


def inputs(shape):
    """Random ones of a shape of the registry: x, dt, a, b, c."""
    batch, seq, dim, state = (shape[axis] for axis in ("batch", "seq", "dim", "state"))
    keys = jax.random.split(jax.random.key(0), 5)
    normal = lambda key, *axes: jax.random.normal(key, axes)
    uniform = lambda key, *axes: jax.random.uniform(key, axes)
    return (
        normal(keys[0], batch, seq, dim),
        0.001 + 0.5 * uniform(keys[1], batch, seq, dim),
        -(0.05 + 2 * uniform(keys[2], dim, state)),
        normal(keys[3], batch, seq, state),
        normal(keys[4], batch, seq, state),
    )
