//! What the engine that copies tiles is told of a tensor: its shape, and the box of it that is a tile.

use std::ffi::c_void;
use std::mem::MaybeUninit;

use cudarc::driver::sys::{
    CUdeviceptr, CUtensorMap, CUtensorMapDataType, CUtensorMapFloatOOBfill, CUtensorMapInterleave,
    CUtensorMapL2promotion, CUtensorMapSwizzle, cuTensorMapEncodeTiled, culib,
};

use super::driver::During;
use super::policy::Layout;
use crate::{Error, Inputs, Problem, Projection};

/// `Maps` of bulk.cuh, field by field.
#[repr(C)]
pub(super) struct Maps {
    x: CUtensorMap,
    dt: CUtensorMap,
    b: CUtensorMap,
    c: CUtensorMap,
    y: CUtensorMap,
}

/// Whether the driver can make tensor maps: from CUDA 12.0 on.
pub(super) fn makes_tensor_maps() -> bool {
    // SAFETY: the driver has been initialized, so the library is there; the symbol is looked for, not called.
    unsafe { culib().get::<unsafe extern "C" fn()>(b"cuTensorMapEncodeTiled\0") }.is_ok()
}

/// The map of a tensor of f32, with the number of elements along each dimension, neighbours first, and of a box of it.
fn map<const RANK: usize>(
    what: &str,
    address: CUdeviceptr,
    shape: [usize; RANK],
    tile: [usize; RANK],
    swizzle: CUtensorMapSwizzle,
) -> Result<CUtensorMap, Error> {
    let mut bytes = size_of::<f32>();
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
            CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
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

impl Maps {
    /// Of the operands of a problem that is walked in this layout.
    pub(super) fn of(
        problem: &Problem,
        layout: &Layout,
        inputs: &Inputs<CUdeviceptr>,
        y: CUdeviceptr,
    ) -> Result<Self, Error> {
        use CUtensorMapSwizzle::{CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_SWIZZLE_NONE};
        let Problem { batch, seq, dim, state, .. } = *problem;
        let sequence = |what, address, swizzle| {
            map(what, address, [dim, seq, batch], [layout.channels, layout.tile, 1], swizzle)
        };
        let projection = |what, address, projection: Projection| {
            // None is constant where tiles are copied.
            let groups = projection.groups().unwrap_or(1);
            let tile = [layout.slots(), 1, layout.tile, 1];
            map(what, address, [state, groups, seq, batch], tile, CU_TENSOR_MAP_SWIZZLE_NONE)
        };
        Ok(Self {
            x: sequence("x", inputs.x, CU_TENSOR_MAP_SWIZZLE_NONE)?,
            dt: sequence("dt", inputs.dt, CU_TENSOR_MAP_SWIZZLE_NONE)?,
            b: projection("b", inputs.b, problem.b)?,
            c: projection("c", inputs.c, problem.c)?,
            y: sequence("y", y, CU_TENSOR_MAP_SWIZZLE_128B)?,
        })
    }
}
