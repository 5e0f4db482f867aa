//! Where the tensors of a safetensors file lie. The file stays in its binary: Elixir cuts it.

use rustler::{Binary, Encoder, Env, Term};
use safetensors::SafeTensors;
use selective_scan::Error;

use crate::reply::reply;
use crate::tensor::file_type;

rustler::atoms! { ok }

/// `{:ok, [{name, type, axes, offset, length}], metadata}` of the contents of a file.
#[rustler::nif(schedule = "DirtyCpu")]
fn safetensors_layout<'a>(env: Env<'a>, file: Binary<'a>) -> Term<'a> {
    reply(env, || {
        let refused =
            |reason: &dyn std::fmt::Display| Error::invalid("file", "be in the safetensors format", reason);
        let (header, contents) =
            SafeTensors::read_metadata(file.as_slice()).map_err(|reason| refused(&reason))?;
        let start = size_of::<u64>() + header;
        let mut layout = Vec::new();
        for (name, tensor) in contents.tensors() {
            let (from, to) = tensor.data_offsets;
            let known = file_type(env, tensor.dtype);
            let type_of = known.ok_or_else(|| refused(&format!("{name} of type {:?}", tensor.dtype)))?;
            layout.push((name, type_of, tensor.shape.clone(), start + from, to - from));
        }
        Ok((ok(), layout, contents.metadata().clone().unwrap_or_default()).encode(env))
    })
}
