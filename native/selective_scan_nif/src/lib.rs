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

rustler::init!("Elixir.ExPhil.Native.Nif", load = xla::register_at_load);
