"""jit, vmap and meshes: the same values and gradients as without them."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

from problems import assert_close, gradients, ours, random
from selective_scan_jax import selective_scan

PARAMETERS = ("a", "d", "dt_bias")


def of_loss(arrays):
    """y, the final state, and their gradients."""
    return ours(arrays), gradients(ours, arrays)


def test_jit_has_one_custom_call_a_pass():
    arrays = random(1)
    forward = jax.jit(ours).lower(arrays).as_text()
    assert forward.count("@exphil_selective_scan_fwd") == 1
    loss = lambda v: jnp.sum(selective_scan(**v) ** 2)
    both = jax.jit(jax.value_and_grad(loss)).lower(arrays).as_text()
    assert both.count("@exphil_selective_scan_fwd") == both.count("@exphil_selective_scan_bwd") == 1
    assert_close(jax.jit(of_loss)(arrays), of_loss(arrays), 1e-14)


def stacked(names, layout="frame", size=3, **options):
    """Instances that share all but what is named: stacked, their axes for vmap, and one by one."""
    every = [random(seed, layout=layout, **options) for seed in range(size)]
    shared = [{name: every[i if name in names else 0][name] for name in every[0]} for i in range(size)]
    arrays = {n: jnp.stack([v[n] for v in shared]) if n in names else shared[0][n] for n in shared[0]}
    return arrays, {name: 0 if name in names else None for name in arrays}, shared


@pytest.mark.parametrize(
    "names, layout",
    (
        (("x", "dt", "b", "c", "z", "initial_state"), "frame"),
        (("x", "dt", "a", "b", "c", "d", "z", "dt_bias", "initial_state"), "groups"),
        (PARAMETERS, "frame"),
        (("b",), "constant"),
        (("x",), "mixed"),
        (("x", "c"), "groups"),
    ),
)
@pytest.mark.parametrize("is_complex", (False, True))
def test_vmap(names, layout, is_complex):
    arrays, axes, one_by_one = stacked(names, layout, is_complex=is_complex)
    expected = jax.tree.map(lambda *v: jnp.stack(v), *map(of_loss, one_by_one))
    assert_close(jax.vmap(of_loss, in_axes=(axes,))(arrays), expected, 1e-13)

    # The other order: the gradient of a sum of instances.
    def loss(arrays):
        y, state = jax.vmap(ours, in_axes=(axes,))(arrays)
        return jnp.sum(jnp.sin(y)) + jnp.sum(jnp.abs(state) ** 2)

    def loss_one_by_one(arrays):
        results = [ours({n: v[i] if n in names else v for n, v in arrays.items()}) for i in range(3)]
        return sum(jnp.sum(jnp.sin(y)) + jnp.sum(jnp.abs(state) ** 2) for y, state in results)

    assert_close(jax.grad(loss)(arrays), jax.grad(loss_one_by_one)(arrays), 1e-13)


def test_vmap_of_packed_rows_and_of_vmap():
    names = ("x", "a", "seq_idx")
    arrays, axes, one_by_one = stacked(names, packed=True)
    expected = jax.tree.map(lambda *v: jnp.stack(v), *map(of_loss, one_by_one))
    assert_close(jax.vmap(of_loss, in_axes=(axes,))(arrays), expected, 1e-13)

    inner = stacked(("x",), optional=())[0]
    outer = {name: jnp.stack([v, 2 * v]) if name in ("x", "a") else v for name, v in inner.items()}
    over = lambda *names: {name: 0 if name in names else None for name in outer}
    twice = jax.vmap(jax.vmap(of_loss, in_axes=(over("x"),)), in_axes=(over("x", "a"),))
    each = [
        [of_loss({n: v[i][j] if n == "x" else v[i] if n == "a" else v for n, v in outer.items()}) for j in range(3)]
        for i in range(2)
    ]
    stack = lambda *v: jnp.stack(v)
    expected = jax.tree.map(stack, *[jax.tree.map(stack, *row) for row in each])
    assert_close(twice(outer), expected, 1e-13)


def test_vmap_over_nothing_is_nothing():
    arrays = random(3)
    y, state = jax.vmap(lambda x: ours(arrays | {"x": x}))(arrays["x"][None][:0])
    assert (y.shape, state.shape) == ((0, 2, 37, 8), (0, 2, 8, 4))


def test_a_gradient_of_a_gradient_is_refused_with_what_to_do():
    arrays = random(4)
    loss = lambda x: jnp.sum(selective_scan(**arrays | {"x": x}) ** 2)
    inner = jax.grad(loss)
    for twice in (jax.hessian(loss), jax.grad(lambda x: inner(x).sum()), jax.grad(lambda x: loss(x - inner(x)))):
        with pytest.raises(NotImplementedError, match="selective_scan has first derivatives alone: .*stop_gradient"):
            twice(arrays["x"])
    first_order = jax.grad(lambda x: loss(x - inner(jax.lax.stop_gradient(x))))
    assert_close(first_order(arrays["x"]), inner(arrays["x"] - inner(arrays["x"])), 1e-13)


def mesh(kind, rows=4, channels=2):
    """Where devices are fewer, as GPUs are, fewer of them share the rows."""
    if len(jax.devices()) == 1:
        pytest.skip("one device")
    while rows * channels > len(jax.devices()):
        rows //= 2
    return jax.make_mesh((rows, channels), ("rows", "channels"), axis_types=(kind, kind))


def placed(arrays, mesh, groups=False):
    """Cut along batch and dim."""
    per_frame = P("rows", None, "channels", None) if groups else P("rows")
    specs = {name: P("rows", None, "channels") for name in ("x", "dt", "z")}
    specs |= {"b": per_frame, "c": per_frame, "a": P("channels"), "d": P("channels"), "dt_bias": P("channels")}
    specs |= {"initial_state": P("rows", "channels"), "seq_idx": P("rows")}
    specs = {name: specs[name] for name in arrays}
    return {n: jax.device_put(v, NamedSharding(mesh, specs[n])) for n, v in arrays.items()}, specs


@pytest.mark.parametrize("kind", (AxisType.Auto, AxisType.Explicit))
@pytest.mark.parametrize("layout", ("frame", "groups"))
@pytest.mark.parametrize("bidirectional", (False, True))
def test_a_program_over_a_mesh_keeps_the_arrays_cut(kind, layout, bidirectional):
    m = mesh(kind)
    arrays = random(2, batch=8, seq=150, layout=layout, packed=not bidirectional)
    run = functools.partial(ours, bidirectional=bidirectional)
    both = lambda v: (run(v), gradients(run, v))
    cut, specs = placed(arrays, m, groups=layout == "groups")
    program = jax.jit(both)
    with jax.set_mesh(m):
        got = program(cut)
        text = program.lower(cut).compile().as_text()
    assert_close(got, both(arrays), 1e-13)
    assert "all-gather" not in text
    for value, name in ((got[0][0], "x"), (got[1]["dt"], "dt")):
        assert value.sharding.is_equivalent_to(NamedSharding(m, specs[name]), value.ndim), name


@pytest.mark.parametrize("layout", ("frame", "groups", "mixed"))
def test_complex_states_over_a_mesh(layout):
    m = mesh(AxisType.Auto, 4, 1)
    arrays = random(6, batch=8, layout=layout, is_complex=True)
    cut = {n: jax.device_put(v, NamedSharding(m, P("rows") if n in ("x", "dt", "z") else P())) for n, v in arrays.items()}
    assert_close(jax.jit(of_loss)(cut), of_loss(arrays), 1e-13)


@pytest.mark.parametrize("names", (("x",), ("x", "dt"), ("x", "dt", "b", "c")))
def test_parameters_that_are_not_cut_have_gradients_that_are_not(names):
    m = mesh(AxisType.Explicit)
    arrays = random(7, batch=8)
    spec = lambda v: P("rows", None, "channels") if v.shape == arrays["x"].shape else P("rows")
    cut = {n: jax.device_put(v, NamedSharding(m, spec(v) if n in names else P())) for n, v in arrays.items()}
    with jax.set_mesh(m):
        got = jax.jit(of_loss)(cut)
    assert_close(got, of_loss(arrays), 1e-13)
    for name, gradient in got[1].items():
        assert gradient.sharding.is_equivalent_to(cut[name].sharding, gradient.ndim), name


def test_what_cannot_be_cut_is_gathered():
    m = mesh(AxisType.Auto)
    arrays = random(3, batch=3, dim=6, seq=9)
    cut = {n: jax.device_put(v, NamedSharding(m, P())) for n, v in arrays.items()}
    cut |= {n: jax.device_put(arrays[n], NamedSharding(m, P(None, None, "channels"))) for n in ("x", "dt")}
    assert_close(jax.jit(of_loss)(cut), of_loss(arrays), 1e-13)
    time = {n: jax.device_put(v, NamedSharding(m, P(None, None))) for n, v in random(3, batch=3, seq=8).items() if v.ndim > 1}
    time |= {n: v for n, v in random(3, batch=3, seq=8).items() if v.ndim == 1}
    time["x"] = jax.device_put(time["x"], NamedSharding(m, P(None, "rows")))
    assert_close(jax.jit(of_loss)(time), of_loss(random(3, batch=3, seq=8)), 1e-13)


@pytest.mark.parametrize("check_vma", (False, True))
def test_shard_map(check_vma):
    m = mesh(AxisType.Auto)
    arrays = random(4, batch=8)
    _, specs = placed(arrays, m)
    local = jax.shard_map(ours, mesh=m, in_specs=(specs,), out_specs=(P("rows", None, "channels"), P("rows", "channels")), check_vma=check_vma)
    assert_close(jax.jit(local)(arrays), ours(arrays), 1e-13)
    assert_close(jax.jit(functools.partial(gradients, local))(arrays), gradients(ours, arrays), 1e-13)


def test_gradients_inside_shard_map_are_summed_for_what_is_shared():
    m = mesh(AxisType.Auto, 8, 1)
    arrays = random(5, batch=8, optional=())
    cut = lambda name: P("rows") if name in ("x", "dt", "b", "c") else P()
    specs = {name: cut(name) for name in arrays}
    inside = lambda v: gradients(lambda v: (selective_scan(**v), jnp.zeros((1,))), v)
    got = jax.jit(jax.shard_map(inside, mesh=m, in_specs=(specs,), out_specs=specs))(arrays)
    each = 8 // m.shape["rows"]
    of_part = lambda i: {n: v[i : i + each] if cut(n) == P("rows") else v for n, v in arrays.items()}
    parts = [inside(of_part(i)) for i in range(0, 8, each)]
    expected = {n: jnp.concatenate([p[n] for p in parts]) if cut(n) == P("rows") else sum(p[n] for p in parts) for n in arrays}
    assert_close(got, expected, 1e-13)


def test_checkpoint_scan_and_donation():
    arrays = random(6, optional=())

    def layers(v):
        body = jax.checkpoint(lambda x, _: (jnp.tanh(selective_scan(**(v | {"x": x}))), None))
        return jnp.sum(jax.lax.scan(body, v["x"], length=3)[0])

    def unrolled(v):
        x = v["x"]
        for _ in range(3):
            x = jnp.tanh(selective_scan(**(v | {"x": x})))
        return jnp.sum(x)

    assert_close(jax.grad(layers)(arrays), jax.grad(unrolled)(arrays), 1e-13)
    expected = selective_scan(**arrays)
    donated = jax.jit(lambda x, rest: selective_scan(x, **rest), donate_argnums=0)
    rest = {n: v for n, v in arrays.items() if n != "x"}
    assert_close(donated(jnp.array(arrays["x"]), rest), expected, 0)
