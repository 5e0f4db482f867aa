"""Values and gradients, beside JAX's own scan and `jax.grad`, in float64."""

import jax
import jax.numpy as jnp
import pytest

from problems import assert_close, gradients, ours, random, single, theirs, theirs_at_once
from reference import METHODS
from selective_scan_jax import selective_scan

LAYOUTS = ("frame", "groups", "constant", "mixed")


def check(arrays, tolerance=1e-11, theirs=theirs, **options):
    assert_close(ours(arrays, **options), theirs(arrays, **options), tolerance)
    assert_close(gradients(ours, arrays, **options), gradients(theirs, arrays, **options), tolerance)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("is_complex", (False, True))
def test_methods_and_layouts(method, layout, is_complex):
    check(random(1, layout=layout, is_complex=is_complex), method=method)


@pytest.mark.parametrize("method", ("foh", "poly", "highorder"))
def test_truncated_series(method):
    check(random(2), method=method, coefficients="taylor")


@pytest.mark.parametrize("bidirectional", (False, True))
@pytest.mark.parametrize("reverse", (False, True))
@pytest.mark.parametrize("packed", (False, True))
def test_modes(bidirectional, reverse, packed):
    check(random(3, packed=packed), bidirectional=bidirectional, reverse=reverse)


def test_step_sizes():
    arrays = random(4)
    arrays["dt"] = 3 * arrays["dt"] - 1
    check(arrays, dt_softplus=True, dt_limit=(0.3, 1.2))
    check(random(4), dt_limit=(0.1, float("inf")))


@pytest.mark.parametrize("optional", ((), ("z",), ("initial_state",), ("d", "dt_bias")))
def test_optional_inputs(optional):
    check(random(5, optional=optional))


@pytest.mark.parametrize("seq", (1, 2, 129, 700))
def test_long_and_short(seq):
    # Of several chunks, whose boundary states go from the forward to the backward pass.
    check(random(6, seq=seq, dim=4, state=16), tolerance=1e-10, theirs=theirs_at_once)
    check(random(6, seq=seq, dim=4, state=3), tolerance=1e-10, theirs=theirs_at_once, bidirectional=True)


@pytest.mark.parametrize("kind, tolerance", (("float32", 1e-5), ("bfloat16", 1.5e-2), ("float16", 2e-3)))
@pytest.mark.parametrize("is_complex", (False, True))
def test_types(kind, tolerance, is_complex):
    arrays = single(random(7, is_complex=is_complex), kind)
    exact = {n: v if v.dtype == jnp.int32 else v.astype("complex128" if jnp.iscomplexobj(v) else "float64") for n, v in arrays.items()}
    if kind != "float32" and is_complex:
        rounded = lambda v: jax.lax.complex(*(p.astype(kind).astype("float64") for p in (v.real, v.imag)))
        exact |= {name: rounded(arrays[name]) for name in ("b", "c")}
    y, state = ours(arrays)
    assert y.dtype == kind and state.dtype == arrays["a"].dtype
    assert_close((y, state), theirs(exact), tolerance)
    got = gradients(ours, arrays)
    assert {n: v.dtype for n, v in got.items()} == {n: v.dtype for n, v in arrays.items()}
    assert_close(got, gradients(theirs, exact), 3 * tolerance)


def test_y_alone_and_states_handed_on():
    arrays = random(8, optional=())
    arguments = [arrays[name] for name in ("x", "dt", "a", "b", "c")]
    y, state = selective_scan(*arguments, return_final_state=True)
    assert_close(selective_scan(*arguments), y, 0)
    first = [v[:, :20] if v.ndim == 3 else v for v in arguments]
    second = [v[:, 20:] if v.ndim == 3 else v for v in arguments]
    y1, middle = selective_scan(*first, return_final_state=True)
    y2, last = selective_scan(*second, initial_state=middle, return_final_state=True)
    assert_close((jnp.concatenate([y1, y2], axis=1), last), (y, state), 1e-13)


def test_frames_with_a_negative_index_are_left_out():
    arrays = random(9, optional=(), packed=True)
    index = arrays["seq_idx"].at[:, 10:13].set(-1)
    keep = [i for i in range(37) if not 10 <= i < 13]
    y, state = ours(arrays | {"seq_idx": index})
    cut = {n: v[:, jnp.array(keep)] if v.ndim > 1 and v.shape[1] == 37 else v for n, v in arrays.items()}
    expected, last = ours(cut)
    assert jnp.all(y[:, 10:13] == 0)
    assert_close((y[:, jnp.array(keep)], state), (expected, last), 1e-13)


WRONG = (
    (lambda v: v | {"b": v["b"][:, :5]}, {}, "expected b to have shape"),
    (lambda v: v | {"a": v["a"][0]}, {}, "expected a to have shape"),
    (lambda v: v | {"x": jnp.zeros(())}, {}, "expected x to have shape"),
    (lambda v: v | {"d": jnp.zeros(())}, {}, "expected d to have shape"),
    (lambda v: v | {"dt": v["dt"].astype("float32")}, {}, "expected dt to have type f64"),
    (lambda v: v | {"z": v["z"].astype("int8")}, {}, "expected z to have type"),
    (lambda v: v | {"x": v["x"][:, :0], "dt": v["dt"][:, :0]}, {}, "expected x to have no empty axis"),
    (lambda v: v | {"seq_idx": jnp.zeros((2, 37), "int64")}, {}, "expected seq_idx to have type s32"),
    (lambda v: v | {"a": v["a"] + 0j}, {}, "expected b to be complex"),
    (lambda v: v, {"method": "zho"}, "expected method to be one of"),
    (lambda v: v, {"method": "foh "}, "expected method to be one of zoh, .*, got: 'foh '"),
    (lambda v: v, {"method": 1}, "expected method to be one of zoh, .*, got: 1"),
    (lambda v: v, {"coefficients": []}, "expected coefficients to be one of exact, taylor, got: \\[\\]"),
    (lambda v: v, {"coefficients": "taylor"}, "expected coefficients to be :exact"),
    (lambda v: v, {"dt_limit": (1.0, 0.0)}, "expected dt_limit to be"),
    (lambda v: v, {"dt_limit": (0.1, 1.0, 5.0)}, "expected dt_limit to be \\(least, greatest\\), two numbers"),
    (lambda v: v, {"dt_limit": 0.1}, "expected dt_limit to be \\(least, greatest\\), two numbers, got: 0.1"),
    (lambda v: v, {"dt_limit": (0, 10**400)}, "expected dt_limit to be \\(least, greatest\\), two numbers"),
    (lambda v: v, {"dt_limit": ("0", "1")}, "expected dt_limit to be \\(least, greatest\\), two numbers"),
    (lambda v: v, {"dt_limit": {0.0: 1, 1.0: 2}}, "expected dt_limit to be \\(least, greatest\\), two numbers"),
    (lambda v: v, {"method": jnp.array(1.0)}, "expected method to be one of zoh, "),
    (lambda v: v, {"dt_limit": b"12"}, "expected dt_limit to be \\(least, greatest\\), two numbers"),
    (lambda v: v | {"a": 10**400}, {}, "expected a to be an array, got: 1000"),
    (lambda v: v | {"c": None}, {}, "expected c to be an array, got: None"),
    (lambda v: v | {"d": "no"}, {}, "expected d to be an array, got: 'no'"),
    (lambda v: v, {"return_final_state": 2}, "expected return_final_state to be a bool, got: 2"),
    (lambda v: v, {"reverse": "no"}, "expected reverse to be a bool, got: 'no'"),
    (lambda v: v | {"a": jnp.zeros((8, 4, 2))}, {}, "expected a to have shape \\(dim, state\\), got: \\(8, 4, 2\\)"),
)


@pytest.mark.parametrize("change, options, words", WRONG)
def test_what_is_wrong_is_said_before_anything_runs(change, options, words):
    arrays = change(random(10))
    options = {"return_final_state": True} | options
    scan = lambda v: selective_scan(**v, **options)
    traced = {name: v for name, v in arrays.items() if isinstance(v, jax.Array)}
    rest = {name: v for name, v in arrays.items() if name not in traced}
    for function in (scan, lambda v: jax.eval_shape(lambda v: scan(v | rest), traced)):
        with pytest.raises(ValueError, match=words):
            function(arrays)
