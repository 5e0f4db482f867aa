//! Registration with the XLA that lives in this process.

use std::ffi::{CStr, c_void};

use super::abi::{self, Api, ByteSpan, Handler, HandlerRegister};
use super::frame::taken;
use super::{BACKWARD, FORWARD, backward_cuda, backward_host, forward_cuda, forward_host};
use crate::Error;

/// What became of a registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Registration {
    /// XLA knows the handlers now, or has known them before.
    Registered,
    /// There is no XLA in this process.
    NoXla,
}

/// Registers the handlers for Host and CUDA with the XLA of this process, if there is one. It is the library of EXLA,
/// which the BEAM has loaded; nothing is loaded here. To do it again is to do nothing.
pub fn register() -> Result<Registration, Error> {
    match find() {
        // SAFETY: XLA's own table.
        Some(api) => unsafe { register_with(api) }.map(|()| Registration::Registered),
        None => Ok(Registration::NoXla),
    }
}

/// The table of the XLA that is loaded. The BEAM loads libraries with their names hidden from each other, so that the
/// library itself must be asked.
#[cfg(unix)]
fn find() -> Option<*const Api> {
    type GetApi = unsafe extern "C" fn() -> *const Api;
    const LIBRARY: &CStr = c"libxla_extension.so";
    // The second is the same function as C++ sees it.
    const NAMES: [&CStr; 2] = [c"XLA_FFI_GetApi", c"_ZN3xla3ffi12GetXlaFfiApiEv"];
    // SAFETY: with RTLD_NOLOAD nothing is loaded or run. The library is not closed again: it must not go while its
    // handlers are ours. A function of these names takes nothing and answers with the table.
    unsafe {
        let library = libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
        if library.is_null() {
            return None;
        }
        let found =
            NAMES.iter().map(|name| libc::dlsym(library, name.as_ptr())).find(|found| !found.is_null())?;
        let api = std::mem::transmute::<*mut c_void, GetApi>(found)();
        (!api.is_null()).then_some(api)
    }
}

#[cfg(not(unix))]
fn find() -> Option<*const Api> {
    None
}

/// # Safety
///
/// `api` is a table of XLA's.
unsafe fn register_with(api: *const Api) -> Result<(), Error> {
    let targets: [(&str, Handler, Handler); 2] =
        [(FORWARD, forward_host, forward_cuda), (BACKWARD, backward_host, backward_cuda)];
    for (name, host, cuda) in targets {
        // SAFETY: the caller's promise; the handlers are ours.
        unsafe {
            register_bundle(api, name, "Host", None, host)?;
            register_bundle(api, name, "CUDA", Some(cuda), cuda)?;
        }
    }
    Ok(())
}

/// # Safety
///
/// As [`register_with`]; the handlers are handlers of the platform.
unsafe fn register_bundle(
    api: *const Api,
    name: &'static str,
    platform: &'static str,
    initialize: Option<Handler>,
    execute: Handler,
) -> Result<(), Error> {
    let bundle = [None, None, initialize, Some(execute), None];
    // SAFETY: the caller's promise.
    let refused = unsafe {
        match (*api).api_version.minor >= abi::MINOR_VERSION_WITH_RECORD {
            true => call_register(api, name, platform, bundle),
            false => call_register(api, name, platform, *bundle.first_chunk::<4>().expect("4 of 5")),
        }
    };
    // SAFETY: the error is what the table's function has just answered.
    unsafe { taken(api, refused) }.map_err(|reason| Error::Failed {
        operation: format!("registering {name} with XLA for {platform}"),
        reason,
        remedy: "load one version of the library only".into(),
    })
}

/// # Safety
///
/// As [`register_bundle`]; `N` handlers are what this XLA expects.
unsafe fn call_register<const N: usize>(
    api: *const Api,
    name: &'static str,
    platform: &'static str,
    bundle: abi::Bundle<N>,
) -> *mut abi::Error {
    let mut arguments = HandlerRegister {
        head: abi::Head::of::<HandlerRegister<N>>(),
        name: ByteSpan::of(name),
        platform: ByteSpan::of(platform),
        bundle,
        traits: abi::TRAIT_COMMAND_BUFFER_COMPATIBLE,
    };
    // SAFETY: the caller's promise; XLA copies what it keeps.
    unsafe { ((*api).handler_register)((&raw mut arguments).cast()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn does_nothing_where_there_is_no_xla() {
        assert_eq!(register(), Ok(Registration::NoXla));
    }
}
