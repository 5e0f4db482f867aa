//! XLA's FFI as it lies in memory: the part of `xla/ffi/api/c_api.h` that a handler needs, by hand.
//!
//! Names are those of the header without `XLA_FFI_`. Nothing that stands here has moved between the XLA of jaxlib
//! 0.4.38 and that of 0.11.2 but [`Bundle`], which has grown; fields after the last one that is used are left out.
//! Enumerations are `i32`, since what comes from outside may be a value that no enum of ours has.

use std::ffi::{c_char, c_void};

/// The version of the interface that this file was written after: 0.4.
pub const MINOR_VERSION: i32 = 4;
/// From this version on a bundle has a fifth handler.
pub const MINOR_VERSION_WITH_RECORD: i32 = 4;

/// `Extension_Metadata`.
pub const EXTENSION_METADATA: i32 = 1;
/// The calls of a handler launch the same work each time: XLA may record them in a CUDA graph.
pub const TRAIT_COMMAND_BUFFER_COMPATIBLE: u32 = 1;
/// `ExecutionStage_INITIALIZE`.
pub const STAGE_INITIALIZE: i32 = 2;
/// `ExecutionStage_EXECUTE`.
pub const STAGE_EXECUTE: i32 = 3;
/// `ArgType_BUFFER` and `RetType_BUFFER`.
pub const BUFFER: i32 = 1;
/// `AttrType_SCALAR`.
pub const ATTRIBUTE_SCALAR: i32 = 3;
/// `AttrType_STRING`.
pub const ATTRIBUTE_STRING: i32 = 4;

/// `Error_Code`, as far as we have reasons to answer with one.
#[repr(i32)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorCode {
    /// The call is wrong.
    InvalidArgument = 3,
    /// We failed.
    Internal = 13,
    /// It cannot run here.
    Unavailable = 14,
}

/// `DataType`: the numbers of XLA's element types.
pub mod data_type {
    #![allow(missing_docs, reason = "XLA's names")]
    pub const PRED: i32 = 1;
    pub const S8: i32 = 2;
    pub const S16: i32 = 3;
    pub const S32: i32 = 4;
    pub const S64: i32 = 5;
    pub const U8: i32 = 6;
    pub const U16: i32 = 7;
    pub const U32: i32 = 8;
    pub const U64: i32 = 9;
    pub const F16: i32 = 10;
    pub const F32: i32 = 11;
    pub const F64: i32 = 12;
    pub const C64: i32 = 15;
    pub const BF16: i32 = 16;
    pub const C128: i32 = 18;
}

/// An error object of XLA's.
#[repr(C)]
pub struct Error {
    _opaque: [u8; 0],
}

/// What a call runs in.
#[repr(C)]
pub struct ExecutionContext {
    _opaque: [u8; 0],
}

/// A handler: null for success, else an error that XLA takes.
pub type Handler = unsafe extern "C" fn(*mut CallFrame) -> *mut Error;

/// The head that every struct of the interface begins with.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Head {
    /// Bytes of the struct as its maker knows it.
    pub struct_size: usize,
    /// The first of a list, or null.
    pub extension_start: *mut Extension,
}

impl Head {
    /// The head of a `T` of ours.
    pub const fn of<T>() -> Self {
        Self { struct_size: size_of::<T>(), extension_start: std::ptr::null_mut() }
    }
}

/// `Extension_Base`.
#[repr(C)]
#[derive(Debug)]
pub struct Extension {
    /// Bytes of the extension.
    pub struct_size: usize,
    /// Which one it is.
    pub kind: i32,
    /// The next, or null.
    pub next: *mut Extension,
}

/// `Metadata_Extension`.
#[repr(C)]
#[derive(Debug)]
pub struct MetadataExtension {
    /// The extension.
    pub base: Extension,
    /// What XLA wants filled in.
    pub metadata: *mut Metadata,
}

/// `Metadata`, without the type of a state: older versions end before it, and we have none.
#[repr(C)]
#[derive(Debug)]
pub struct Metadata {
    /// Bytes of the struct.
    pub struct_size: usize,
    /// The version that the handler was written for.
    pub api_version: ApiVersion,
    /// A set of bits.
    pub traits: u32,
}

/// `Api_Version`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ApiVersion {
    /// The head.
    pub head: Head,
    /// 0 so far.
    pub major: i32,
    /// Grows with what is added.
    pub minor: i32,
}

/// `ByteSpan`: text without a terminating zero.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ByteSpan {
    /// Its first byte.
    pub start: *const u8,
    /// Its bytes.
    pub len: usize,
}

impl ByteSpan {
    /// The span of a text that lives for ever.
    pub const fn of(text: &'static str) -> Self {
        Self { start: text.as_ptr(), len: text.len() }
    }
}

/// `Scalar`.
#[repr(C)]
#[derive(Debug)]
pub struct Scalar {
    /// A [`data_type`].
    pub dtype: i32,
    /// The value, of that type.
    pub value: *const c_void,
}

/// `Buffer`: a tensor.
#[repr(C)]
#[derive(Debug)]
pub struct Buffer {
    /// The head.
    pub head: Head,
    /// A [`data_type`].
    pub dtype: i32,
    /// On the device of the platform; null where the tensor is empty.
    pub data: *mut c_void,
    /// How many axes.
    pub rank: i64,
    /// Their lengths.
    pub dims: *const i64,
}

/// `Args` and `Rets`, which are the same.
#[repr(C)]
#[derive(Debug)]
pub struct Buffers {
    /// The head.
    pub head: Head,
    /// How many.
    pub size: i64,
    /// The kind of each, [`BUFFER`].
    pub kinds: *const i32,
    /// Each.
    pub buffers: *const *const Buffer,
}

/// `Attrs`, in the order of the names.
#[repr(C)]
#[derive(Debug)]
pub struct Attributes {
    /// The head.
    pub head: Head,
    /// How many.
    pub size: i64,
    /// The kind of each.
    pub kinds: *const i32,
    /// The name of each.
    pub names: *const *const ByteSpan,
    /// A [`Scalar`], a [`ByteSpan`] or what else the kind says.
    pub values: *const *const c_void,
}

/// `CallFrame`: a call.
#[repr(C)]
pub struct CallFrame {
    /// The head.
    pub head: Head,
    /// What XLA offers.
    pub api: *const Api,
    /// What the call runs in.
    pub context: *mut ExecutionContext,
    /// The stage of the execution.
    pub stage: i32,
    /// The operands.
    pub operands: Buffers,
    /// The results.
    pub results: Buffers,
    /// The attributes.
    pub attributes: Attributes,
    /// For handlers that end later.
    pub future: *mut c_void,
}

/// `Api`: the functions of XLA.
#[repr(C)]
pub struct Api {
    /// The head.
    pub head: Head,
    /// XLA's version.
    pub api_version: ApiVersion,
    /// Not for us.
    pub internal_api: *const c_void,
    /// Makes an error.
    pub error_create: unsafe extern "C" fn(*mut ErrorCreate) -> *mut Error,
    /// Reads one.
    pub error_get_message: unsafe extern "C" fn(*mut ErrorGetMessage),
    /// Frees one.
    pub error_destroy: unsafe extern "C" fn(*mut ErrorDestroy),
    /// Registers a bundle of handlers.
    pub handler_register: unsafe extern "C" fn(*mut c_void) -> *mut Error,
    /// The stream of a call.
    pub stream_get: unsafe extern "C" fn(*mut StreamGet) -> *mut Error,
    /// Types, states, memory, threads, futures and runs.
    pub between: [*const c_void; 12],
    /// The number of the device of a call.
    pub device_ordinal_get: unsafe extern "C" fn(*mut DeviceOrdinalGet) -> *mut Error,
}

/// `Error_Create_Args`.
#[repr(C)]
pub struct ErrorCreate {
    /// The head.
    pub head: Head,
    /// The text, copied.
    pub message: *const c_char,
    /// The kind.
    pub code: ErrorCode,
}

/// `Error_GetMessage_Args`, later `Error_GetDetails_Args`.
#[repr(C)]
pub struct ErrorGetMessage {
    /// The head.
    pub head: Head,
    /// The error.
    pub error: *mut Error,
    /// Out: its text.
    pub message: *const c_char,
    /// Out, from version 0.4 on: its code.
    pub code: i32,
}

/// `Error_Destroy_Args`.
#[repr(C)]
pub struct ErrorDestroy {
    /// The head.
    pub head: Head,
    /// The error.
    pub error: *mut Error,
}

/// `Stream_Get_Args`.
#[repr(C)]
pub struct StreamGet {
    /// The head.
    pub head: Head,
    /// That of the call.
    pub context: *mut ExecutionContext,
    /// Out: a `CUstream` on the platform CUDA.
    pub stream: *mut c_void,
}

/// `DeviceOrdinal_Get_Args`.
#[repr(C)]
pub struct DeviceOrdinalGet {
    /// The head.
    pub head: Head,
    /// That of the call.
    pub context: *mut ExecutionContext,
    /// Out: the number of the device in this process.
    pub ordinal: i32,
}

/// `Handler_Bundle`: instantiate, prepare, initialize, execute and, where N is 5, record.
pub type Bundle<const N: usize> = [Option<Handler>; N];

/// `Handler_Register_Args`.
#[repr(C)]
pub struct HandlerRegister<const N: usize> {
    /// The head.
    pub head: Head,
    /// What programs call it.
    pub name: ByteSpan,
    /// `Host` or `CUDA`.
    pub platform: ByteSpan,
    /// The handlers.
    pub bundle: Bundle<N>,
    /// A set of bits.
    pub traits: u32,
}

// What XLA's header gives on a 64-bit machine.
const _: () = {
    use std::mem::offset_of;

    assert!(size_of::<Extension>() == 24);
    assert!(offset_of!(MetadataExtension, metadata) == 24);
    assert!(offset_of!(Metadata, api_version) == 8);
    assert!(offset_of!(Metadata, traits) == 32);
    assert!(size_of::<ApiVersion>() == 24);
    assert!(size_of::<ByteSpan>() == 16);
    assert!(size_of::<Scalar>() == 16);
    assert!(offset_of!(Buffer, dtype) == 16);
    assert!(offset_of!(Buffer, data) == 24);
    assert!(offset_of!(Buffer, rank) == 32);
    assert!(offset_of!(Buffer, dims) == 40);
    assert!(size_of::<Buffer>() == 48);
    assert!(size_of::<Buffers>() == 40);
    assert!(size_of::<Attributes>() == 48);
    assert!(offset_of!(CallFrame, api) == 16);
    assert!(offset_of!(CallFrame, context) == 24);
    assert!(offset_of!(CallFrame, stage) == 32);
    assert!(offset_of!(CallFrame, operands) == 40);
    assert!(offset_of!(CallFrame, results) == 80);
    assert!(offset_of!(CallFrame, attributes) == 120);
    assert!(offset_of!(CallFrame, future) == 168);
    assert!(size_of::<CallFrame>() == 176);
    assert!(offset_of!(Api, api_version) == 16);
    assert!(offset_of!(Api, error_create) == 48);
    assert!(offset_of!(Api, error_get_message) == 56);
    assert!(offset_of!(Api, error_destroy) == 64);
    assert!(offset_of!(Api, handler_register) == 72);
    assert!(offset_of!(Api, stream_get) == 80);
    assert!(offset_of!(Api, device_ordinal_get) == 184);
    assert!(offset_of!(ErrorCreate, code) == 24);
    assert!(offset_of!(ErrorGetMessage, message) == 24);
    assert!(size_of::<StreamGet>() == 32);
    assert!(offset_of!(DeviceOrdinalGet, ordinal) == 24);
    assert!(offset_of!(HandlerRegister<4>, bundle) == 48);
    assert!(offset_of!(HandlerRegister<4>, traits) == 80);
    assert!(offset_of!(HandlerRegister<5>, traits) == 88);
};
