//! The BEAM's shell over the core crate: it reads terms, lends their memory to a backend and wraps what comes back.
//! What a request means, and whether it makes sense, is decided in `selective_scan::Problem`.

mod backend;
mod backward;
mod check;
mod forward;
mod in_place;
mod machine;
mod memory;
mod reply;
mod request;
mod safetensors;
mod tensor;
mod xla;

use std::path::Path;

use rustler::{Env, Term};
use selective_scan::cuda;

rustler::init!("Elixir.ExPhil.Native.Nif", load = load);

/// `packed_kernels` names the file of kernels for machines without NVRTC, which need not be there.
fn load(_: Env<'_>, packed_kernels: Term<'_>) -> bool {
    if let Ok(file) = packed_kernels.decode::<String>() {
        cuda::packed::use_packed_kernels(Path::new(&file));
    }
    xla::register_at_load();
    true
}
