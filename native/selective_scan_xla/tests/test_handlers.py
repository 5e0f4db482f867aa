"""The handlers as any program may call them: the text that EXLA writes, every kind of wrong call, many at once."""

import re
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.lib import xla_client
from jax.extend.backend import get_backend

from problems import assert_close, gradients, ours, random, single, theirs
from selective_scan_jax import _library

DEVICE = jax.devices()[0]
KINDS = {"float32": "f32", "float64": "f64", "int32": "i32", "uint8": "ui8", "complex64": "complex<f32>"}


def mlir(array):
    return f"tensor<{''.join(f'{n}x' for n in array.shape)}{KINDS[array.dtype.name]}>"


def program(target, operands, results, attributes, flat=False, turned=False):
    """The operation in MLIR's generic form, as EXLA 0.13 writes it: no layouts, api_version 4, a dictionary of
    attributes. With `flat`, all its tensors have one axis, and the shapes are an attribute. With `turned`, what has
    more axes comes transposed into the program and goes so from it: XLA would then rather have other layouts."""
    lines = []

    def op(name, value, before, after, attribute=""):
        result = f"%v{len(lines)}"
        lines.append(f'{result} = "stablehlo.{name}"({value}){attribute} : ({mlir(before)}) -> {mlir(after)}')
        return result

    def turn(value, before):
        axes = ", ".join(map(str, reversed(range(len(before.shape)))))
        return op("transpose", value, before, reverse(before), f" {{permutation = array<i64: {axes}>}}")

    arguments, values = [], []
    for i, v in enumerate(operands.values()):
        arguments.append(f"%arg{i}: {mlir(reverse(v) if turned else v)}")
        value = turn(f"%arg{i}", reverse(v)) if turned else f"%arg{i}"
        values.append(op("reshape", value, v, line(v)) if flat else value)
    shape = line if flat else lambda v: v
    types = [mlir(shape(v)) for v in results]
    if flat:
        attributes = attributes | {"shapes": quoted(",".join(map(str, v.shape)) for v in operands.values())}
    entries = ", ".join(f"{name} = {value}" for name, value in attributes.items())
    lines.append(
        f'%0:{len(types)} = "stablehlo.custom_call"({", ".join(values)}) {{backend_config = {{{entries}}}, '
        f'call_target_name = "{target}", api_version = 4 : i32}} : '
        f"({', '.join(mlir(shape(v)) for v in operands.values())}) -> ({', '.join(types)})"
    )
    returned = []
    for i, v in enumerate(results):
        value = op("reshape", f"%0#{i}", line(v), v) if flat else f"%0#{i}"
        returned.append(turn(value, v) if turned else value)
    types = ", ".join(mlir(reverse(v) if turned else v) for v in results)
    body = "\n    ".join([*lines, f'"func.return"({", ".join(returned)}) : ({types}) -> ()'])
    return f"module @main {{\n  func.func public @main({', '.join(arguments)}) -> ({types}) {{\n    {body}\n  }}\n}}"


def reverse(array):
    return jax.ShapeDtypeStruct(array.shape[::-1], array.dtype)


def line(array):
    return jax.ShapeDtypeStruct((array.size,), array.dtype)


def run(text, arguments):
    backend = get_backend()
    devices = xla_client.DeviceList((DEVICE,))
    executable = backend.compile_and_load(text, devices, xla_client.CompileOptions())
    results = executable.execute_sharded([jax.device_put(v, DEVICE) for v in arguments])
    return [shards[0] for shards in results.disassemble_into_single_device_arrays()]


def call(operands, results, attributes, target=_library.FORWARD, flat=False, turned=False):
    """Runs a program of one custom call."""
    _library.library()
    text = program(target, operands, results, attributes, flat, turned)
    outputs = run(text, [jnp.asarray(v.T if turned else v) for v in operands.values()])
    return [v.T if turned else v for v in outputs]


def quoted(names):
    return '"' + " ".join(names) + '"'


def scratch_of(arrays):
    kind = {"float32": "f32", "float64": "f64", "int32": "s32"}
    words = (f"{n}={kind[v.dtype.name]}[{','.join(map(str, v.shape))}]" for n, v in arrays.items())
    return _library.scratch(" ".join(words))


def workspace(arrays, backward=False):
    """The result that a call on CUDA wants beside its own: none on the CPU."""
    scratch = scratch_of(arrays)
    size = scratch.backward_workspace if backward else scratch.forward_workspace
    return [jax.ShapeDtypeStruct((size,), jnp.uint8)] if size else []


FORMS = pytest.mark.parametrize("flat, turned", ((False, False), (True, False), (True, True)))


@FORMS
def test_the_text_that_exla_writes(flat, turned):
    arrays = random(1)
    scratch = workspace(arrays)
    names = ["y", "final_state"] + ["workspace"] * len(scratch)
    got = call(
        arrays,
        [jax.ShapeDtypeStruct(shape, jnp.float64) for shape in (arrays["x"].shape, (2, 8, 4))] + scratch,
        {
            "operands": quoted(arrays),
            "results": quoted(names),
            "method": '"foh"',
            "reverse": "1 : i64",
            "dt_softplus": "true",
            "bidirectional": "false",
            "dt_limit_min": "1.0e-1 : f64",
            "dt_limit_max": "0x7FF0000000000000 : f64",
        },
        flat=flat,
        turned=turned,
    )
    expected = theirs(arrays, method="foh", reverse=True, dt_softplus=True, dt_limit=(0.1, np.inf))
    assert_close(tuple(got[:2]), expected, 1e-11)


@FORMS
def test_backward_in_the_text_that_exla_writes(flat, turned):
    # 12 operands or 13, and 9 results or 10.
    arrays = random(2, seq=300)
    y, state = ours(arrays)
    weights = lambda v: jnp.cos(jnp.arange(v.size, dtype=y.dtype)).reshape(v.shape)
    beside = {"dy": weights(y), "dfinal_state": weights(state)}
    scratch = scratch_of(arrays)
    forward_results = [jax.ShapeDtypeStruct(y.shape, y.dtype)] + workspace(arrays)
    names = ["y", "workspace"][: len(forward_results)]
    if scratch.chunks:
        kept = jax.ShapeDtypeStruct((1, 2, scratch.chunks, 8, 4), y.dtype)
        attributes = {"operands": quoted(arrays), "results": quoted(["boundary_states", *names])}
        beside["boundary_states"] = call(arrays, [kept, *forward_results], attributes, flat=flat, turned=turned)[0]
    scratch = workspace(arrays, backward=True)
    results = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in arrays.values()] + scratch
    names = [*arrays] + ["workspace"] * len(scratch)
    attributes = {"operands": quoted([*arrays, *beside]), "results": quoted(names)}
    got = call(arrays | beside, results, attributes, target=_library.BACKWARD, flat=flat, turned=turned)
    assert_close(dict(zip(arrays, got)), gradients(theirs, arrays), 1e-10)


def test_complex_operands_as_xla_has_them():
    arrays = single(random(3, is_complex=True, optional=()), "float32")
    scratch = []
    if _library.platform() == "CUDA":
        scratch = [jax.ShapeDtypeStruct((1 << 24,), jnp.uint8)]
    names = ["y", "final_state"] + ["workspace"] * len(scratch)
    results = [
        jax.ShapeDtypeStruct(arrays["x"].shape, jnp.float32),
        jax.ShapeDtypeStruct((2, 8, 4), jnp.complex64),
    ]
    got = call(arrays, results + scratch, {"operands": quoted(arrays), "results": quoted(names)})
    assert_close(tuple(got[:2]), ours(arrays), 1e-6)


def test_numbers_may_be_of_any_type():
    arrays = {n: np.asarray(v) for n, v in random(4, optional=()).items()}
    y = [jax.ShapeDtypeStruct(arrays["x"].shape, jnp.float64)]
    names = {"operands": quoted(arrays), "results": '"y"', "dt_softplus": "true"}
    if _library.platform() == "CUDA":
        pytest.skip("a workspace has to be asked for")
    integers = ("ui8", "ui16", "ui32", "ui64", "i8", "i16", "i32", "i64")
    for name, value, kinds in (("reverse", "true", integers), ("dt_limit_min", "1.0 : f64", (*integers, "f32"))):
        expected = call(arrays, y, names | {name: value})[0]
        for kind in kinds:
            one = "1.0" if kind == "f32" else "1"
            assert_close(call(arrays, y, names | {name: f"{one} : {kind}"})[0], expected, 0)


def wrong_calls():
    good = {n: np.asarray(v) for n, v in random(4, optional=()).items()}
    y = jax.ShapeDtypeStruct(good["x"].shape, jnp.float64)

    def case(words, operands=good, results=(y,), target=_library.FORWARD, names=None, **attributes):
        given = {"operands": quoted(good), "results": '"y"'} | (names or {}) | attributes
        given = {k: v for k, v in given.items() if v is not None}
        return pytest.param(target, operands, list(results), given, words, id=re.sub(r"\W+", "-", words)[:60])

    def backward(words, operands={}, results={}):
        operands = good | {"dy": good["x"]} | operands
        results = {n: jax.ShapeDtypeStruct(v.shape, v.dtype) for n, v in (good | results).items()}
        names = {"operands": quoted(operands), "results": quoted(results)}
        return case(words, operands, results.values(), _library.BACKWARD, names)

    scalar = np.float64(1.0)
    yield case("name the 5 tensors of the call", names={"operands": '"x dt a b"'})
    yield case("expected operands to name x", names={"operands": '"q dt a b c"'})
    yield case("name tensors of the operation", operands=good | {"v": scalar}, names={"operands": '"x dt a b c v"'})
    yield case("each of them once", operands=good | {"v": good["x"]}, names={"operands": '"x dt a b c x"'})
    yield case("expected operands to name the 5", names={"operands": None})
    yield case("expected operands to be a string", names={"operands": "3 : i64"})
    yield case("expected results to name the 1 tensors", names={"results": '"y final_state"'})
    yield case("expected results to name y", names={"results": '"state"'})
    yield case("expected results to name tensors of the operation", results=[y, y], names={"results": '"y v"'})
    yield case("expected y to be f64", results=[jax.ShapeDtypeStruct((2, 37, 7), jnp.float64)])
    yield case("expected y to be f64", results=[jax.ShapeDtypeStruct((2, 37, 8), jnp.float32)])
    yield case("expected final_state to be f64", results=[y, y], names={"results": '"y final_state"'})
    yield case("expected boundary_states to be f64", results=[y, y], names={"results": '"y boundary_states"'})
    yield case("expected workspace to have type u8, got: f64", results=[y, y], names={"results": '"y workspace"'})
    yield case("expected method to be one of", method='"zho"')
    # A zero ends no text of ours, and is left out of XLA's.
    yield case("got: :zho", method='"z\\00ho"')
    yield case("expected method to be a string", method="1 : i64")
    yield case("expected reverse to be a boolean", reverse="2 : i64")
    yield case("expected reverse to be a boolean", reverse='"yes"')
    yield case("expected reverse to be a boolean", reverse="array<i64: 1, 0>")
    yield case("expected dt_limit_min to be a number", dt_limit_min='"none"')
    yield case("expected dt_limit_min to be a number", dt_limit_min="18446744073709551615 : ui64")
    yield case("expected dt_limit to be", dt_limit_min="2.0 : f64", dt_limit_max="1.0 : f64")
    yield case("expected the attributes to be among", softplus="true")
    yield case("expected x to have shape", operands=good | {"x": scalar})
    yield case("expected a to have shape", operands=good | {"a": scalar})
    yield case("expected b to have shape", operands=good | {"b": scalar})
    yield case("expected x to have no empty axis", operands=good | {"x": good["x"][:0], "dt": good["dt"][:0]})
    yield case("expected dt to have type f64", operands=good | {"dt": good["dt"].astype("float32")})
    yield case("have type f32, bf16, f16 or f64, got: u8", operands=good | {"c": good["c"].astype("uint8")})
    yield case("expected x to have type", operands=good | {"x": good["x"].astype("int32")})
    yield case("expected operands to name x", operands={"x": scalar}, names={"operands": '"y"'})
    yield case("expected shapes to be as many", shapes='"2,37,8"')
    yield case("expected shapes to be as many", shapes='"2,37,8 2,-37,8 8,4 2,37,4 2,37,4"')
    yield case("expected operands to have one axis", shapes='"2,37,8 2,37,8 8,4 2,37,4 2,37,4"')
    yield case(
        "expected operands to have one axis",
        operands={n: v.ravel() for n, v in good.items()},
        shapes='"2,37,8 2,37,8 8,4 2,37,4 2,4611686018427387904,37,4"',
    )
    yield case(
        "expected y to have one axis",
        operands={n: v.ravel() for n, v in good.items()},
        shapes='"2,37,8 2,37,8 8,4 2,37,4 2,37,4"',
    )
    yield case("expected operands to name dy", target=_library.BACKWARD)
    yield case(
        "expected results to name x",
        target=_library.BACKWARD,
        operands=good | {"dy": good["x"]},
        names={"operands": '"x dt a b c dy"'},
    )
    yield backward("expected dy to have shape", {"dy": scalar})
    yield backward("expected boundary_states to be f64", {"boundary_states": np.zeros((1, 2, 1, 8, 4), "float32")})
    yield backward("expected operands to name tensors of the operation", {"v": scalar})
    yield backward("expected results to name tensors of the operation", results={"v": scalar})


@pytest.mark.parametrize("target, operands, results, attributes, words", list(wrong_calls()))
def test_a_wrong_call_is_an_error_with_our_words(target, operands, results, attributes, words):
    with pytest.raises(Exception, match=re.escape(words)) as caught:
        jax.block_until_ready(call(operands, results, attributes, target=target))
    assert "INVALID_ARGUMENT" in str(caught.value)


def test_no_operands_at_all():
    with pytest.raises(Exception, match="expected operands to name x"):
        jax.block_until_ready(call({}, [jax.ShapeDtypeStruct((2,), jnp.float64)], {"results": '"y"'}))


@pytest.mark.parametrize(
    "target, operand, result",
    (
        (_library.FORWARD, "x", "y"),
        (_library.FORWARD, "x", "boundary_states"),
        (_library.BACKWARD, "x", "x"),
        (_library.BACKWARD, "dy", "x"),
        (_library.BACKWARD, "boundary_states", "x"),
    ),
)
def test_results_may_not_lie_in_operands(target, operand, result):
    # Flat, boundary states of nine chunks and x are of the same type.
    arrays = random(5, seq=36, optional=())
    kept = {"boundary_states": jnp.zeros((1, 2, 9, 8, 4))}
    operands, results = arrays, {"y": arrays["x"]} | kept
    if target == _library.BACKWARD:
        operands, results = arrays | {"dy": arrays["x"]} | kept, arrays
    at = [*operands].index(operand)
    aliases = {at: [*results].index(result)}
    function = jax.ffi.ffi_call(target, [line(v) for v in results.values()], input_output_aliases=aliases)
    shapes = " ".join(",".join(map(str, v.shape)) for v in operands.values())
    names = {"operands": " ".join(operands), "results": " ".join(results), "shapes": shapes}
    aliased = jax.jit(lambda *v: function(*v, **names), donate_argnums=at)
    with pytest.raises(Exception, match="lie apart"):
        jax.block_until_ready(aliased(*[jnp.ravel(v) for v in operands.values()]))


def test_boundary_states_of_another_platform_do_no_harm():
    if _library.platform() == "CUDA":
        pytest.skip("of the host alone")
    arrays = random(6, seq=300, optional=())
    y, _ = theirs(arrays)
    shape = (1, 2, 7, 8, 4)
    results = [jax.ShapeDtypeStruct(s, jnp.float64) for s in (y.shape, shape)]
    got, kept = call(arrays, results, {"operands": quoted(arrays), "results": '"y boundary_states"'})
    assert_close(got, y, 1e-11)
    assert not np.any(kept)
    operands = arrays | {"dy": jnp.ones_like(y), "boundary_states": jnp.ones(shape)}
    results = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in arrays.values()]
    got = call(operands, results, {"operands": quoted(operands), "results": quoted(arrays)}, target=_library.BACKWARD)
    expected = jax.grad(lambda v: jnp.sum(theirs(v)[0]))(arrays)
    assert_close(dict(zip(arrays, got)), expected, 1e-11)


def test_1000_calls_from_8_threads():
    problems = [random(seed, seq=16, dim=8 + 8 * (seed % 3), optional=("z",)) for seed in range(8)]
    both = jax.jit(lambda v: (ours(v), gradients(ours, v)))
    expected = [both(v) for v in problems]
    wrong = []

    def work(i):
        for n in range(125):
            k = (i + n) % 8
            same = jax.tree.map(lambda a, b: bool(jnp.array_equal(a, b)), both(problems[k]), expected[k])
            if not all(jax.tree.leaves(same)):
                wrong.append((i, n))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
