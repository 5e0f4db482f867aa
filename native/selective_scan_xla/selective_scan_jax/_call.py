"""The two custom calls as functions of arrays, one tensor an argument.

What `jax.vmap` and a mesh do to a call follows from one table: which axes each tensor has.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from . import _library

Array = jax.Array
Function = Callable[..., list[Array]]
MeshAxes = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Call:
    """What a program asks for, but for shapes."""

    target: str
    operands: tuple[str, ...]
    results: tuple[str, ...]
    complex: bool
    constant: tuple[str, ...]
    """Which of b and c are the same in every frame."""
    method: str
    coefficients: str
    bidirectional: bool
    reverse: bool
    dt_softplus: bool
    dt_limit: tuple[float, float] | None

    def axes(self, name: str) -> str:
        """The axes of a tensor: b(atch), l(ength), d(im), n (state), g and h (groups of b and of c), r (directions), k
        (chunks), w (the components of a complex number). Per-frame b and c always have their groups here."""
        match name:
            case "x" | "dt" | "z" | "y" | "dy":
                return "bld"
            case "d" | "dt_bias":
                return "d"
            case "seq_idx":
                return "bl"
            case "a":
                axes = "dn"
            case "b" | "c":
                axes = "dn" if name in self.constant else {"b": "blgn", "c": "blhn"}[name]
            case "initial_state" | "final_state" | "dfinal_state":
                axes = "bdn"
            case "boundary_states":
                axes = "rbkdn"
            case _:
                raise ValueError(name)
        return axes + "w" * self.complex

    def forward(self, results: tuple[str, ...]) -> "Call":
        """The forward call."""
        return dataclasses.replace(self, target=_library.FORWARD, results=results)

    def backward(self, beside: tuple[str, ...]) -> "Call":
        """The backward call of a forward call, with operands `beside` its own; every gradient has the name of its operand."""
        gradients = tuple(name for name in self.operands if name != "seq_idx")
        return dataclasses.replace(
            self, target=_library.BACKWARD, operands=self.operands + beside, results=gradients
        )

    def attributes(self) -> dict[str, object]:
        """The attributes that are options."""
        given: dict[str, object] = {
            "method": self.method,
            "coefficients": self.coefficients,
            "bidirectional": self.bidirectional,
            "reverse": self.reverse,
            "dt_softplus": self.dt_softplus,
        }
        if self.dt_limit is not None:
            given |= {name: np.float64(v) for name, v in zip(("dt_limit_min", "dt_limit_max"), self.dt_limit)}
        return given

    def words(self, shapes: dict[str, tuple[str, Sequence[int]]]) -> str:
        """The problem in the words of the native library, from the types and shapes of its inputs."""
        for name, (_, shape) in shapes.items():
            if not all(isinstance(axis, int) for axis in shape):
                raise ValueError(f"expected {name} to have a shape of numbers, got: {tuple(shape)}")
        inputs = [f"{name}={kind}[{','.join(map(str, shape))}]" for name, (kind, shape) in shapes.items()]
        options = [f"{k}={int(v) if isinstance(v, bool) else v}" for k, v in self.attributes().items()]
        return " ".join(inputs + options)


INPUTS = ("x", "dt", "a", "b", "c", "d", "z", "dt_bias", "initial_state", "seq_idx")

_KINDS = {"float32": "f32", "float64": "f64", "bfloat16": "bf16", "float16": "f16", "int32": "s32"}


def kind_of(array: Array) -> str:
    """The native library's name of an element type."""
    return _KINDS.get(array.dtype.name, array.dtype.name)


def scratch_of(call: Call, operands: dict[str, Array]) -> _library.Scratch:
    """Checks the inputs among the operands, and asks how much memory the call needs."""
    inputs = {name: (kind_of(v), v.shape) for name, v in operands.items() if name in INPUTS}
    return _library.scratch(call.words(inputs))


@functools.cache
def batched_call(call: Call) -> Function:
    """The custom call with a rule for `jax.vmap`: the new axis is folded into batch or, where each of its instances
    has parameters or gradients of parameters of its own, into dim and groups."""

    @custom_vmap
    def function(*operands: Array) -> list[Array]:
        return _partitioned(call, operands)

    @function.def_vmap
    def rule(axis_size: int, is_batched: list[bool], *operands: Array) -> tuple[list[Array], list[bool]]:
        if axis_size == 0:
            return _none(is_batched, operands), [True] * len(call.results)
        own = [call.axes(name) for name, batched in zip(call.operands, is_batched) if batched]
        every = own + [call.axes(name) for name in call.results]
        into = "b" if all("b" in axes for axes in every) else "dgh"
        is_own_index = any(n == "seq_idx" and batched for n, batched in zip(call.operands, is_batched))
        if into != "b" and is_own_index:
            return _one_by_one(axis_size, is_batched, operands), [True] * len(call.results)
        folded = [
            _fold(axis_size, batched, call.axes(name), into, operand)
            for name, batched, operand in zip(call.operands, is_batched, operands)
        ]
        results = function(*folded)
        unfolded = [_unfold(axis_size, call.axes(n), into, v) for n, v in zip(call.results, results)]
        return unfolded, [True] * len(unfolded)

    def _none(is_batched: list[bool], operands: Sequence[Array]) -> list[Array]:
        one = [
            jax.ShapeDtypeStruct(v.shape[1:] if batched else v.shape, v.dtype) for v, batched in zip(operands, is_batched)
        ]
        return [jnp.zeros((0, *result.shape), result.dtype) for result in jax.eval_shape(function, *one)]

    def _one_by_one(axis_size: int, is_batched: list[bool], operands: Sequence[Array]) -> list[Array]:
        def one(i: Array) -> list[Array]:
            return function(*(v[i] if batched else v for v, batched in zip(operands, is_batched)))

        return jax.lax.map(one, jnp.arange(axis_size))

    return function


def _fold(size: int, batched: bool, axes: str, into: str, array: Array) -> Array:
    place = next((i for i, axis in enumerate(axes) if axis in into), None)
    if place is None:
        return array
    if not batched:
        array = jnp.broadcast_to(array, (size, *array.shape))
    array = jnp.moveaxis(array, 0, place)
    return array.reshape(*array.shape[:place], size * array.shape[place + 1], *array.shape[place + 2 :])


def _unfold(size: int, axes: str, into: str, array: Array) -> Array:
    place = next(i for i, axis in enumerate(axes) if axis in into)
    array = array.reshape(*array.shape[:place], size, -1, *array.shape[place + 1 :])
    return jnp.moveaxis(array, place, 0)


def _partitioned(call: Call, operands: Sequence[Array]) -> list[Array]:
    """The custom call on arrays that may lie on several devices."""
    sharding = jax.typeof(operands[0]).sharding
    if AxisType.Explicit in sharding.mesh.axis_types:
        # The types say how the arrays are cut.
        shapes = {name: v.shape for name, v in zip(call.operands, operands)}
        cut = Cut.of(sharding.mesh, sharding.spec, shapes)
        specs = [cut.spec(call.axes(name)) for name in call.operands]
        placed = [jax.reshard(v, NamedSharding(sharding.mesh, spec)) for v, spec in zip(operands, specs)]
        local = jax.shard_map(
            functools.partial(_local, call, cut),
            mesh=sharding.mesh,
            in_specs=tuple(specs),
            out_specs=[cut.spec(call.axes(name)) for name in call.results],
            check_vma=False,
        )
        return local(*placed)
    return _partitioned_by_xla(call)(*operands)


@functools.cache
def _partitioned_by_xla(call: Call) -> Function:
    """The custom call with a rule for XLA's partitioner."""

    def function(*operands: Array) -> list[Array]:
        return _call(call, operands)

    def partition(mesh: Mesh, arguments, results):
        x = arguments[0].sharding
        spec = x.spec if isinstance(x, NamedSharding) else PartitionSpec()
        cut = Cut.of(mesh, spec, {name: v.shape for name, v in zip(call.operands, arguments)})
        place = lambda name: NamedSharding(mesh, cut.spec(call.axes(name)))
        local = functools.partial(_local, call, cut)
        return mesh, local, [place(n) for n in call.results], tuple(place(n) for n in call.operands)

    rule = [", ".join(" ".join(call.axes(name)) for name in names) for names in (call.operands, call.results)]
    # The partitioner wants them in the order in which they first appear.
    whole = tuple(axis for axis in dict.fromkeys(" ".join(rule)) if axis in "lnghrkw")
    partitioned = custom_partitioning(function)
    partitioned.def_partition(partition, sharding_rule=" -> ".join(rule), need_replication_factors=whole)
    return partitioned


@dataclasses.dataclass(frozen=True)
class Cut:
    """Along which axes of a mesh the axes of tensors are cut."""

    axes: tuple[tuple[str, MeshAxes], ...]

    @classmethod
    def of(cls, mesh: Mesh, spec: PartitionSpec, shapes: dict[str, Sequence[int]]) -> "Cut":
        """As x is cut, along batch and dim, where the parts are whole. Groups are cut with dim."""
        batch, _, dim = (_mesh_axes(part) for part in (*spec, None, None, None)[:3])
        size = lambda axes: int(np.prod([mesh.shape[axis] for axis in axes]))
        if shapes["x"][0] % size(batch):
            batch = ()
        groups = {axis: shapes[name][2] for axis, name in (("g", "b"), ("h", "c")) if len(shapes[name]) > 3}
        if any(length % size(dim) for length in (shapes["x"][2], *(n for n in groups.values() if n > 1))):
            dim = ()
        cut = {"b": batch, "d": dim} | {axis: dim if n > 1 else () for axis, n in groups.items()}
        return cls(tuple(cut.items()))

    def spec(self, axes: str) -> PartitionSpec:
        """How a tensor with these axes is cut."""
        cut = dict(self.axes)
        return PartitionSpec(*(cut.get(axis) or None for axis in axes))

    def summed(self, axes: str) -> MeshAxes:
        """Over which axes of the mesh a gradient with these axes is to be summed."""
        of = dict(self.axes)
        over_batch = () if "b" in axes else of["b"]
        over_dim = () if any(of.get(axis) == of["d"] for axis in axes) else of["d"]
        return over_batch + over_dim


def _mesh_axes(part: object) -> MeshAxes:
    match part:
        case None:
            return ()
        case str():
            return (part,)
        case tuple():
            return part
        case _:
            return ()


def _local(call: Call, cut: Cut, *operands: Array) -> list[Array]:
    """The custom call on the part of one device. Gradients of what all devices share are summed."""
    results = _call(call, operands)
    summed = [cut.summed(call.axes(name)) for name in call.results]
    return [jax.lax.psum(v, axes) if axes else v for v, axes in zip(results, summed)]


def _call(call: Call, operands: Sequence[Array]) -> list[Array]:
    named = dict(zip(call.operands, operands))
    scratch = scratch_of(call, named)
    x, a = named["x"], named["a"]
    state = (x.shape[0], *a.shape)
    outputs = {
        "y": (x.shape, x.dtype),
        "final_state": (state, a.dtype),
        "boundary_states": (
            (2 if call.bidirectional else 1, x.shape[0], scratch.chunks, *a.shape),
            a.dtype,
        ),
    }
    is_forward = call.target == _library.FORWARD
    if not is_forward:
        outputs = {name: (v.shape, v.dtype) for name, v in named.items()}
    results = [outputs[name] for name in call.results]
    workspace = scratch.forward_workspace if is_forward else scratch.backward_workspace
    names = call.results
    if workspace:
        names += ("workspace",)
        results.append(((workspace,), jnp.uint8))
    function = jax.ffi.ffi_call(call.target, [jax.ShapeDtypeStruct(*result) for result in results])
    attributes = {"operands": " ".join(call.operands), "results": " ".join(names), **call.attributes()}
    outputs = function(*operands, **attributes)[: len(call.results)]
    return varying_together([x, *outputs])[1:]


def varying_together(arrays: Sequence[Array]) -> list[Array]:
    """Inside `jax.shard_map`, what all devices share is made to vary like the rest. Its gradient is then summed."""
    own = [_varying(jax.typeof(array)) for array in arrays]
    every = frozenset().union(*own)
    missing = [tuple(axis for axis in every if axis not in axes) for axes in own]
    return [jax.lax.pcast(v, axes, to="varying") if axes else v for v, axes in zip(arrays, missing)]


def _varying(of: jax.core.ShapedArray) -> frozenset[str]:
    # JAX 0.9 has `vma`, newer ones have `mat`, which knows more.
    return of.vma if hasattr(of, "vma") else of.mat.varying
