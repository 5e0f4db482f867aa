//! A CUDA driver without a GPU: where it is found as libcuda.so, kernels run on the processor, instruction by
//! instruction, and are watched as they do.
//!
//! It is there for tests, on machines that have no GPU and for GPUs that nobody here has. What NVRTC makes of a kernel's
//! source is run as PTX, and ends with a fault where
//!
//! - global memory is accessed that nobody allocated, or at an address that is no multiple of what is accessed;
//! - shared memory is accessed beyond its end, or by two threads with no barrier between them, of whom one writes;
//! - lanes that should meet, at a barrier or to exchange values, do not.
//!
//! The engine that copies tiles does so at once (`engine`), so it is not seen whether anybody waits for it, and what a thread did to
//! shared memory before is forgotten where the engine reads or writes.
//!
//! It cannot show what ptxas makes of PTX, how long anything takes, or what goes wrong between launches that overlap, as
//! a launch has ended here when it returns; and nobody watches whether two threads access the same place in global memory.
//!
//! The instructions and what they mean: Parallel Thread Execution ISA, NVIDIA, version 9.0. Those that our kernels do not
//! use are missing, and a module that has one is refused with its name. (The crate that runs
//! PTX, ptoxide 0.1 of 2023, lacks many instructions, by its own words.)
//!
//! In the order of the way from a text to results: [`module`] says what a module is to the interpreter, [`parse`] reads
//! one, `decode` finds what an instruction does, with the functions of `arithmetic`; [`launch`] runs the blocks of a
//! grid, `warp` 32 threads of one, `shared` and [`global`] are the memories that they access, `engine` copies between
//! them, and `driver` is what programs see of it all.

mod arithmetic;
mod decode;
mod driver;
mod engine;
pub mod global;
pub mod launch;
pub mod module;
pub mod parse;
mod shared;
mod warp;
