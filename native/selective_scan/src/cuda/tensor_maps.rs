//! What the engine that copies tiles is told of a tensor: its shape, and the box of it that is a tile.

use std::ffi::c_void;
use std::mem::MaybeUninit;

use cudarc::driver::sys::CUtensorMapSwizzle::{
    CU_TENSOR_MAP_SWIZZLE_64B, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_SWIZZLE_NONE,
};
use cudarc::driver::sys::{
    CUdeviceptr, CUtensorMap, CUtensorMapDataType, CUtensorMapFloatOOBfill, CUtensorMapInterleave,
    CUtensorMapL2promotion, CUtensorMapSwizzle, cuTensorMapEncodeTiled, culib,
};

use super::arguments::Arguments;
use super::compile::{Configuration, Program};
use super::driver::During;
use super::policy::{Layout, swizzles_inputs, swizzles_outputs};
use crate::{ElementType, Error, Problem, Projection};

/// `Maps` of bulk.cuh, field by field.
#[repr(C)]
pub(super) struct Maps {
    x: CUtensorMap,
    dt: CUtensorMap,
    b: CUtensorMap,
    c: CUtensorMap,
    y: CUtensorMap,
    z: CUtensorMap,
}

/// `ChunkMaps` of bulk.cuh, field by field.
#[repr(C)]
pub(super) struct ChunkMaps {
    dt: CUtensorMap,
    source: CUtensorMap,
    projection: CUtensorMap,
}

/// What a kernel is given beside `Arguments`.
#[allow(clippy::large_enum_variant, reason = "there is one at a time, on the stack of a launch")]
pub(super) enum KernelMaps {
    None,
    /// Of scan_bulk and scan_relay.
    OfScan(Maps),
    /// Of scan_chunks.
    OfChunks(ChunkMaps),
}

impl KernelMaps {
    /// Of a problem's operands, for a kernel that was compiled so.
    pub(super) fn of(
        configuration: &Configuration,
        problem: &Problem,
        arguments: &Arguments,
    ) -> Result<Self, Error> {
        let tiles = Tiles { problem, layout: &configuration.layout };
        Ok(match configuration.program {
            Program::Bulk | Program::Relay => Self::OfScan(tiles.of_scan(arguments)?),
            Program::Chunks => Self::OfChunks(tiles.of_chunks(configuration.adjoints, arguments)?),
            Program::Marks
            | Program::Prefix
            | Program::Forward
            | Program::Adjoints
            | Program::Backward
            | Program::Reduce => Self::None,
        })
    }

    /// Where the driver finds them; null for a kernel that has no such parameter.
    pub(super) fn address(&self) -> *const c_void {
        match self {
            Self::None => std::ptr::null(),
            Self::OfScan(maps) => std::ptr::from_ref(maps).cast(),
            Self::OfChunks(maps) => std::ptr::from_ref(maps).cast(),
        }
    }
}

/// Whether the driver can make tensor maps: from CUDA 12.0 on.
pub(super) fn makes_tensor_maps() -> bool {
    // SAFETY: the driver has been initialized, so the library is there; the symbol is looked for, not called.
    unsafe { culib().get::<unsafe extern "C" fn()>(b"cuTensorMapEncodeTiled\0") }.is_ok()
}

/// As the driver names it; no others are copied.
fn data_type(element: ElementType) -> CUtensorMapDataType {
    match element {
        ElementType::Bf16 => CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        ElementType::F16 => CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        _ => CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
    }
}

/// The map of a tensor, with the number of elements along each dimension, neighbours first, and of a box of it.
fn map<const RANK: usize>(
    what: &str,
    element: ElementType,
    address: CUdeviceptr,
    shape: [usize; RANK],
    tile: [usize; RANK],
    swizzle: CUtensorMapSwizzle,
) -> Result<CUtensorMap, Error> {
    let mut bytes = element.size();
    let strides = shape.map(|count| {
        bytes *= count;
        bytes as u64
    });
    let (shape, tile) = (shape.map(|count| count as u64), tile.map(|count| count as u32));
    let mut map = MaybeUninit::uninit();
    // SAFETY: the arrays have an element for each of RANK dimensions (of the strides the last is not read: that of the
    // first is the element itself), and the map is written before it is read. The address is not followed here.
    unsafe {
        cuTensorMapEncodeTiled(
            map.as_mut_ptr(),
            data_type(element),
            RANK as u32,
            address as *mut c_void,
            shape.as_ptr(),
            strides.as_ptr(),
            tile.as_ptr(),
            [1; RANK].as_ptr(),
            CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            swizzle,
            CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
            CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
        .result()
        .during(|| format!("describing the tiles of {what}, {shape:?}"))?;
        Ok(map.assume_init())
    }
}

/// What maps are made of: a problem, and the layout that its tiles are walked in.
struct Tiles<'a> {
    problem: &'a Problem,
    layout: &'a Layout,
}

impl Tiles<'_> {
    fn of_sequence(&self, what: &str, address: CUdeviceptr, swizzles: bool) -> Result<CUtensorMap, Error> {
        let Problem { batch, seq, dim, element, .. } = *self.problem;
        let tile = [self.layout.channels, self.layout.tile, 1];
        let swizzle = match self.layout.channels * element.size() {
            64 if swizzles => CU_TENSOR_MAP_SWIZZLE_64B,
            _ if swizzles => CU_TENSOR_MAP_SWIZZLE_128B,
            _ => CU_TENSOR_MAP_SWIZZLE_NONE,
        };
        map(what, element, address, [dim, seq, batch], tile, swizzle)
    }

    /// Of b or c.
    fn of_projection(
        &self,
        what: &str,
        address: CUdeviceptr,
        projection: Projection,
    ) -> Result<CUtensorMap, Error> {
        let Problem { batch, seq, state, element, .. } = *self.problem;
        // None is constant where tiles are copied.
        let groups = projection.groups().unwrap_or(1);
        let (shape, tile) = ([state, groups, seq, batch], [self.layout.slots(), 1, self.layout.tile, 1]);
        map(what, element, address, shape, tile, CU_TENSOR_MAP_SWIZZLE_NONE)
    }
    /// Of the operands of a scan.
    fn of_scan(&self, arguments: &Arguments) -> Result<Maps, Error> {
        let Self { problem, layout } = *self;
        let input = |what, address| self.of_sequence(what, address, swizzles_inputs(problem, layout));
        Ok(Maps {
            x: input("x", arguments.x)?,
            dt: input("dt", arguments.dt)?,
            b: self.of_projection("b", arguments.b, problem.b)?,
            c: self.of_projection("c", arguments.c, problem.c)?,
            y: self.of_sequence("y", arguments.y, swizzles_outputs(problem, layout))?,
            z: match arguments.z {
                0 => CUtensorMap { opaque: [0; 16] },
                z => input("z", z)?,
            },
        })
    }

    /// Of what chunks come to, or adjoint chunks.
    fn of_chunks(&self, adjoints: bool, arguments: &Arguments) -> Result<ChunkMaps, Error> {
        let sequence = |what, address| self.of_sequence(what, address, false);
        let (source, projection) = match adjoints {
            true => (("dy", arguments.dy), ("c", arguments.c, self.problem.c)),
            false => (("x", arguments.x), ("b", arguments.b, self.problem.b)),
        };
        Ok(ChunkMaps {
            dt: sequence("dt", arguments.dt)?,
            source: sequence(source.0, source.1)?,
            projection: self.of_projection(projection.0, projection.1, projection.2)?,
        })
    }
}
