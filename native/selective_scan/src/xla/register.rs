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

/// What XLA knows of: the targets, each with its handlers for Host and for CUDA.
type Targets = [(&'static str, Handler, Handler); 2];
const TARGETS: Targets = [(FORWARD, forward_host, forward_cuda), (BACKWARD, backward_host, backward_cuda)];

/// Registers the handlers for Host and CUDA with the XLA of this process, if there is one. It is the library of EXLA,
/// which the BEAM has loaded; nothing is loaded here. To do it again is to do nothing.
pub fn register() -> Result<Registration, Error> {
    match find() {
        // SAFETY: XLA's own table.
        Some(api) => unsafe { register_with(api, TARGETS) }.map(|()| Registration::Registered),
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
/// `api` is a table of XLA's; the handlers are handlers of their platforms.
unsafe fn register_with(api: *const Api, targets: Targets) -> Result<(), Error> {
    for (name, host, cuda) in targets {
        // SAFETY: the caller's promise.
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
    use std::sync::Mutex;

    use super::*;
    use crate::xla::abi::{ApiVersion, ErrorCreate, ErrorDestroy, ErrorGetMessage, Head};

    /// Not our own handlers, with which all of the CPU backend would be compiled once more.
    unsafe extern "C" fn handler(_: *mut abi::CallFrame) -> *mut abi::Error {
        std::ptr::null_mut()
    }

    const TARGETS: Targets = [(FORWARD, handler, handler), (BACKWARD, handler, handler)];

    /// What an XLA of ours was told: bytes of the arguments, name, platform, handlers, traits.
    type Told = (usize, String, String, Vec<bool>, u32);
    static TOLD: Mutex<Vec<Told>> = Mutex::new(Vec::new());

    unsafe fn tell<const N: usize>(arguments: *mut c_void) {
        // SAFETY: what `call_register` has handed over.
        let told = unsafe {
            let a = &*arguments.cast::<HandlerRegister<N>>();
            let text = |span: ByteSpan| {
                let bytes = std::slice::from_raw_parts(span.start, span.len);
                String::from_utf8(bytes.to_vec()).unwrap()
            };
            let handlers = a.bundle.iter().map(Option::is_some).collect();
            (a.head.struct_size, text(a.name), text(a.platform), handlers, a.traits)
        };
        TOLD.lock().unwrap().push(told);
    }

    unsafe extern "C" fn register_4(arguments: *mut c_void) -> *mut abi::Error {
        // SAFETY: as above.
        unsafe { tell::<4>(arguments) };
        std::ptr::null_mut()
    }

    unsafe extern "C" fn register_5(arguments: *mut c_void) -> *mut abi::Error {
        // SAFETY: as above.
        unsafe { tell::<5>(arguments) };
        std::ptr::null_mut()
    }

    unsafe extern "C" fn refuse(_: *mut c_void) -> *mut abi::Error {
        std::ptr::dangling_mut()
    }

    unsafe extern "C" fn create(_: *mut ErrorCreate) -> *mut abi::Error {
        std::ptr::null_mut()
    }

    unsafe extern "C" fn get_message(get: *mut ErrorGetMessage) {
        // SAFETY: what `taken` has handed over.
        unsafe { (*get).message = c"there is another".as_ptr() };
    }

    unsafe extern "C" fn destroy(_: *mut ErrorDestroy) {}

    unsafe extern "C" fn no_stream(_: *mut abi::StreamGet) -> *mut abi::Error {
        std::ptr::null_mut()
    }

    unsafe extern "C" fn no_ordinal(_: *mut abi::DeviceOrdinalGet) -> *mut abi::Error {
        std::ptr::null_mut()
    }

    fn xla(minor: i32, handler_register: unsafe extern "C" fn(*mut c_void) -> *mut abi::Error) -> Api {
        Api {
            head: Head::of::<Api>(),
            api_version: ApiVersion { head: Head::of::<ApiVersion>(), major: 0, minor },
            internal_api: std::ptr::null(),
            error_create: create,
            error_get_message: get_message,
            error_destroy: destroy,
            handler_register,
            stream_get: no_stream,
            between: [std::ptr::null(); 12],
            device_ordinal_get: no_ordinal,
        }
    }

    #[test]
    fn tells_every_version_what_it_expects() {
        for (minor, register, bytes) in [(2, register_4 as _, 88), (4, register_5 as _, 96)] {
            // SAFETY: a table with all that is called.
            unsafe { register_with(&xla(minor, register), TARGETS) }.unwrap();
            let told = std::mem::take(&mut *TOLD.lock().unwrap());
            let names: Vec<_> =
                told.iter().map(|(_, name, platform, ..)| (&name[..], &platform[..])).collect();
            assert_eq!(names, [(FORWARD, "Host"), (FORWARD, "CUDA"), (BACKWARD, "Host"), (BACKWARD, "CUDA")]);
            for (size, _, platform, handlers, traits) in told {
                assert_eq!((size, traits), (bytes, abi::TRAIT_COMMAND_BUFFER_COMPATIBLE));
                assert_eq!(handlers[..4], [false, false, platform == "CUDA", true]);
                assert!(!handlers.get(4).is_some_and(|&there| there));
            }
        }
    }

    #[test]
    fn a_refusal_has_the_words_of_xla() {
        // SAFETY: a table with all that is called.
        let error = unsafe { register_with(&xla(3, refuse), TARGETS) }.unwrap_err().to_string();
        assert!(
            error.starts_with(
                "registering exphil_selective_scan_fwd with XLA for Host failed: there is another"
            )
        );
    }
}
