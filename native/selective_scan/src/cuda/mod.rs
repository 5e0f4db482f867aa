//! The scan on NVIDIA GPUs.
//!
//! # The algorithm
//!
//! With A diagonal, every channel and state is a recurrence of its own, h ← a·h + g·B·x, with one exponential a
//! frame: batch · dim · state independent walks over time. In the layout {batch, seq, dim} neighbouring channels
//! are neighbours in memory, so a warp holds neighbouring channels and a thread walks time with a few states of one
//! channel in registers. Nothing of a state ever reaches memory but its beginning and its end. What the threads of a
//! block share, x, dt, b and c, is brought to shared memory a tile of frames at a time while the last tile is
//! walked, and everything that happens to an element but once (conversion, bias, softplus, limit, the gate) happens
//! there. Where the device can copy tiles by itself, it does (`bulk.cu`). The floor is set by
//! the unit for exponentials, 16 a clock and multiprocessor, or by the bytes of x, dt and y, whichever takes longer
//! (`spans.cuh`). A scan over time in parallel (as in Gu & Dao 2023, "Mamba", section 3.3.2)
//! would pay its logarithm for every state; it is not needed where batch and dim fill the device.
//!
//! Where they do not, threads share a channel's frames too. What some frames do to the state that enters them is linear,
//! h ↦ P·h + q, and P = exp(A·ΣΔ) costs one exponential (where A is complex, or the method bilinear, P is the product
//! itself). In `time_lanes.cuh`, for short rows, eight lanes of a warp have eight frames each: a thread finds P and q of its
//! own, the warp scans them, and the thread walks its frames again from what it learns, with the decays that it has kept. A
//! long row is cut in chunks that are walked side by side: `chunks.cu`, in tiles that the device copies, or `forward.cu`, compiled
//! for that, finds q and ΣΔ of every chunk, `prefix.cu` the state at every boundary (of few chunks, each block that at its own), and
//! `forward.cu` or `bulk.cu` walks each chunk from there: two exponentials a frame and state instead of one, on as many times more
//! threads as there are chunks.
//! Where rows are of one to three strips a multiprocessor, eight channels each (a prompt, one long row), `relay.cu` walks a row once:
//! the warps of a block walk neighbouring tiles of a strip from zero, keep the decays in registers, and hand the state on from warp to
//! warp; each then adds what the state before its tile adds to its outputs, which takes no exponential. Where multiprocessors would have
//! unequal numbers of strips, the tiles of all are dealt to them evenly if that is reckoned to be faster, and states are handed on from
//! block to block, too, through memory.
//!
//! Backward, the gradient λ of the state is a recurrence of the same decays, from the last frame to the first, that
//! needs the states in that order. They are recomputed from those at the boundaries of chunks, which the forward pass
//! has kept, or which are found as above. `backward.cu` walks a tile of frames forward and keeps the state before each
//! span of four frames in shared memory; then it walks back, span by span: forward once more from what was kept, so that
//! decays and states of the span stay in registers, and back through them. Where batch and dim do not fill the device,
//! segments of whole tiles, or spans, are scanned side by side; what each adds to λ before it is linear too, and costs one more
//! walk, of smaller chunks of the segments, and `prefix.cu` over these (of few, each block joins those after its segment). Where rows
//! are short and few, each is one tile, in parts that the warps of a block walk side by side: from zero first, which says what states
//! and adjoints they begin with. dB and dC are sums over channels: over two in a thread's registers, over those of a warp and of a block
//! in shared memory, over the blocks by `reduce.cu`. So that few of these sums wait, segments are launched a piece at a
//! time from their ends, each followed by its reduction. `policy` chooses chunks, segments and
//! pieces such that, from 2048 frames on, all of it stays below a tenth of the inputs, but for a few channels. (Of 2 bytes an
//! element, where there are several sweeps, the sums of dx, ddt and dz between the sweeps come on top, and of dB and dC between
//! the directions.) Every sum has a
//! fixed order, so a call gives the same bits each time on the same device: where several sweeps add to one element in memory,
//! each does so once, after those before it have ended.
//!
//! Bidirectional scans are two walks in opposite directions that add to the same output. More states than a walk holds in
//! registers are walked forward in rounds, some frames for one round after the other (`rounds.cuh`), and where shared memory
//! does not hold their B and C, or backward, in several sweeps. Directions and sweeps gather in the type of computation and
//! are rounded once. Backward, where passes have the states from the forward pass, all walk a piece, one after the other, before
//! any walks the next: until then nobody has written the gradients of the frames before it, so that sums may wait in their
//! memory. Else each sweep walks all pieces, and only the first finds that room.
//!
//! # The layers
//!
//! [`policy`] chooses the layout; [`compile`] turns it into macros, and [`images`] finds machine code for them: on the
//! disk, from NVRTC, or as PTX among the kernels that were packed with the library;
//! [`Device::enqueue_forward`] and [`Device::enqueue_backward`] launch on a caller's stream and memory, and neither
//! wait nor allocate; [`Device::forward`] and [`Device::backward`] do it from and to host memory, on streams and
//! memory that the device keeps, and [`Device::forward_in_place`] and [`Device::backward_in_place`] on a caller's
//! tensors in device memory.

pub mod compile;
pub mod images;
pub mod nvrtc;
pub mod packed;
pub mod policy;

mod arguments;
mod backward;
mod boundary;
mod buffers;
mod cache;
mod context;
mod device;
mod driver;
mod forward;
mod host;
mod in_place;
mod launch;
mod tensor_maps;
mod workspace;

pub use boundary::{boundary_bytes, boundary_shape};
pub use buffers::PinnedBuffer;
pub use cudarc::driver::sys::{CUdeviceptr, CUstream};
pub use device::{Device, DeviceInfo, device, devices, properties};
pub use in_place::owner;
pub use launch::{Pass, configurations};
