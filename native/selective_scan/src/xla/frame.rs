//! A call frame as safe Rust: tensors, attributes, and the few questions that XLA answers.

use std::ffi::{CString, c_void};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem::discriminant;
use std::slice;

use super::abi::{self, Buffers, CallFrame, data_type};
use crate::{ElementType, Error, Spec};

/// A call, for as long as its handler runs.
pub struct Frame<'a>(&'a CallFrame);

impl<'a> Frame<'a> {
    /// # Safety
    ///
    /// The frame is one that XLA has handed to a handler which has not returned, for 'a.
    pub unsafe fn new(frame: *const CallFrame) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { &*frame })
    }

    /// The stage of the execution.
    pub fn stage(&self) -> i32 {
        self.0.stage
    }

    /// The operands, in their order.
    pub fn operands(&self) -> Result<Vec<Tensor>, Error> {
        tensors(&self.0.operands)
    }

    /// The results, in their order.
    pub fn results(&self) -> Result<Vec<Tensor>, Error> {
        tensors(&self.0.results)
    }

    /// The attributes, by name.
    pub fn attributes(&self) -> impl Iterator<Item = (&'a str, Attribute<'a>)> {
        let attributes = &self.0.attributes;
        // SAFETY: XLA's arrays are as long as it says, and each entry points to what its kind says.
        unsafe {
            let kinds = list(attributes.kinds, attributes.size);
            let names = list(attributes.names, attributes.size);
            let values = list(attributes.values, attributes.size);
            kinds.iter().zip(names).zip(values).map(|((&kind, &name), &value)| {
                (text(&*name).unwrap_or("an attribute that is no text"), Attribute::read(kind, value))
            })
        }
    }

    /// A number that calls share which have the same attributes, and tensors of the same types and shapes.
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for (name, value) in self.attributes() {
            (name, discriminant(&value)).hash(&mut hasher);
            match value {
                Attribute::Text(text) => text.hash(&mut hasher),
                Attribute::Integer(integer) => integer.hash(&mut hasher),
                Attribute::Real(real) => real.to_bits().hash(&mut hasher),
                Attribute::Other => {}
            }
        }
        for tensors in [&self.0.operands, &self.0.results] {
            // SAFETY: XLA's arrays are as long as it says; what is of this kind points to a buffer.
            unsafe {
                for (&kind, &buffer) in
                    list(tensors.kinds, tensors.size).iter().zip(list(tensors.buffers, tensors.size))
                {
                    kind.hash(&mut hasher);
                    if kind == abi::BUFFER {
                        ((*buffer).dtype, list((*buffer).dims, (*buffer).rank)).hash(&mut hasher);
                    }
                }
            }
        }
        hasher.finish()
    }

    /// The device of the call.
    pub fn device_ordinal(&self) -> Result<usize, Error> {
        let mut answer = abi::DeviceOrdinalGet {
            head: abi::Head::of::<abi::DeviceOrdinalGet>(),
            context: self.0.context,
            ordinal: 0,
        };
        // SAFETY: the table outlives the process; a shorter one, of an older XLA, is not read beyond its end.
        let refused = unsafe {
            if (*self.0.api).head.struct_size < size_of::<abi::Api>() {
                return Err(Error::Unavailable {
                    backend: "cuda",
                    reason: "this XLA is too old to say on which device a call runs".into(),
                    remedy: "use jaxlib 0.5 or EXLA 0.10, or newer".into(),
                });
            }
            ((*self.0.api).device_ordinal_get)(&mut answer)
        };
        self.answered(refused, "asking XLA for the device")?;
        Ok(answer.ordinal as usize)
    }

    /// The stream of the call.
    pub fn stream(&self) -> Result<*mut c_void, Error> {
        let mut answer = abi::StreamGet {
            head: abi::Head::of::<abi::StreamGet>(),
            context: self.0.context,
            stream: std::ptr::null_mut(),
        };
        // SAFETY: the table outlives the process.
        let refused = unsafe { ((*self.0.api).stream_get)(&mut answer) };
        self.answered(refused, "asking XLA for the stream")?;
        Ok(answer.stream)
    }

    fn answered(&self, refused: *mut abi::Error, operation: &str) -> Result<(), Error> {
        // SAFETY: the error is what the table's function has just answered.
        unsafe { taken(self.0.api, refused) }.map_err(|reason| Error::Failed {
            operation: operation.into(),
            reason,
            remedy: "call it from a program that runs on that platform".into(),
        })
    }

    /// Fills in what XLA wants to know before it takes a handler: true where the call is nothing but that question.
    pub fn answers_metadata(&self) -> bool {
        let mut extension = self.0.head.extension_start;
        while !extension.is_null() {
            // SAFETY: a list of XLA's; an extension of this kind has metadata that is there to be written.
            unsafe {
                if (*extension).kind == abi::EXTENSION_METADATA {
                    let metadata = (*extension.cast::<abi::MetadataExtension>()).metadata;
                    let theirs = (*self.0.api).api_version.minor;
                    (*metadata).api_version.major = 0;
                    (*metadata).api_version.minor = theirs.min(abi::MINOR_VERSION);
                    (*metadata).traits = abi::TRAIT_COMMAND_BUFFER_COMPATIBLE;
                    return true;
                }
                extension = (*extension).next;
            }
        }
        false
    }

    /// An error, for XLA to take.
    pub fn error(&self, code: abi::ErrorCode, message: &str) -> *mut abi::Error {
        let message = CString::new(message.replace('\0', "")).expect("its zeros are gone");
        let mut error =
            abi::ErrorCreate { head: abi::Head::of::<abi::ErrorCreate>(), message: message.as_ptr(), code };
        // SAFETY: the table outlives the process, and the text is copied.
        unsafe { ((*self.0.api).error_create)(&mut error) }
    }
}

/// The text of an error of XLA's, which is freed.
///
/// # Safety
///
/// The error is null or ours to free, and `api` the table that it comes from.
pub unsafe fn taken(api: *const abi::Api, error: *mut abi::Error) -> Result<(), String> {
    if error.is_null() {
        return Ok(());
    }
    let mut get = abi::ErrorGetMessage {
        head: abi::Head::of::<abi::ErrorGetMessage>(),
        error,
        message: std::ptr::null(),
        code: 0,
    };
    let mut destroy = abi::ErrorDestroy { head: abi::Head::of::<abi::ErrorDestroy>(), error };
    // SAFETY: the caller's promise; the message lives as long as the error.
    unsafe {
        ((*api).error_get_message)(&mut get);
        let words = std::ffi::CStr::from_ptr(get.message).to_string_lossy().into_owned();
        ((*api).error_destroy)(&mut destroy);
        Err(words)
    }
}

/// An attribute, as far as calls have them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Attribute<'a> {
    /// A string.
    Text(&'a str),
    /// An integer or a boolean.
    Integer(i64),
    /// A number.
    Real(f64),
    /// Anything else.
    Other,
}

impl Attribute<'_> {
    /// # Safety
    ///
    /// The value is what XLA says it is, and lives for the lifetime of the attribute.
    unsafe fn read(kind: i32, value: *const c_void) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            match kind {
                abi::ATTRIBUTE_STRING => text(&*value.cast()).map_or(Self::Other, Self::Text),
                abi::ATTRIBUTE_SCALAR => {
                    let abi::Scalar { dtype, value } = *value.cast();
                    match dtype {
                        data_type::PRED => Self::Integer(value.cast::<u8>().read().into()),
                        data_type::S8 => Self::Integer(value.cast::<i8>().read().into()),
                        data_type::S16 => Self::Integer(value.cast::<i16>().read().into()),
                        data_type::S32 => Self::Integer(value.cast::<i32>().read().into()),
                        data_type::S64 => Self::Integer(value.cast::<i64>().read()),
                        data_type::U8 => Self::Integer(value.cast::<u8>().read().into()),
                        data_type::U16 => Self::Integer(value.cast::<u16>().read().into()),
                        data_type::U32 => Self::Integer(value.cast::<u32>().read().into()),
                        data_type::U64 => {
                            value.cast::<u64>().read().try_into().map_or(Self::Other, Self::Integer)
                        }
                        data_type::F32 => Self::Real(value.cast::<f32>().read().into()),
                        data_type::F64 => Self::Real(value.cast::<f64>().read()),
                        _ => Self::Other,
                    }
                }
                _ => Self::Other,
            }
        }
    }
}

/// A tensor of a call: where it lies and what it is.
#[derive(Debug, Clone)]
pub struct Tensor {
    /// Null where the tensor is empty.
    pub data: *mut c_void,
    /// One of [`data_type`].
    dtype: i32,
    /// With a trailing 2 where XLA's type is complex, as in all of this crate.
    pub shape: Vec<usize>,
}

impl Tensor {
    /// What [`crate::Problem`] wants to know of it.
    pub fn spec(&self, name: &'static str) -> Result<Spec<'_>, Error> {
        let element = match self.dtype {
            data_type::F32 | data_type::C64 => ElementType::F32,
            data_type::F64 | data_type::C128 => ElementType::F64,
            data_type::BF16 => ElementType::Bf16,
            data_type::F16 => ElementType::F16,
            data_type::S32 => ElementType::S32,
            _ => return Err(Error::wrong_type(name, self.type_name())),
        };
        Ok(Spec { element, shape: &self.shape })
    }

    /// The same memory as a tensor of another shape, which has the trailing 2 already. Only what has one axis lies in
    /// memory as every shape of as many elements would.
    pub fn shaped(self, name: &'static str, shape: Vec<usize>) -> Result<Self, Error> {
        let axes = self.shape.len() - usize::from(self.is_complex());
        let elements = |shape: &[usize]| shape.iter().try_fold(1usize, |all, &axis| all.checked_mul(axis));
        if axes != 1 || elements(&self.shape) != elements(&shape) {
            let expected = format!("have one axis, of the elements of {shape:?}");
            return Err(Error::invalid(name, expected, format!("{:?}", self.shape)));
        }
        Ok(Self { shape, ..self })
    }

    /// A shape with the trailing 2, if this tensor has XLA's complex type.
    pub fn with_components(&self, axes: impl Iterator<Item = usize>) -> Vec<usize> {
        axes.chain(self.is_complex().then_some(2)).collect()
    }

    fn is_complex(&self) -> bool {
        matches!(self.dtype, data_type::C64 | data_type::C128)
    }

    fn type_name(&self) -> String {
        let name = match self.dtype {
            data_type::PRED => "pred",
            data_type::S8 => "s8",
            data_type::S16 => "s16",
            data_type::S64 => "s64",
            data_type::U8 => "u8",
            data_type::U16 => "u16",
            data_type::U32 => "u32",
            data_type::U64 => "u64",
            other => return format!("XLA's type {other}"),
        };
        name.into()
    }

    /// The tensor, which must be one of bytes.
    pub fn of_bytes(self, name: &'static str) -> Result<Self, Error> {
        if self.dtype == data_type::U8 {
            return Ok(self);
        }
        let got = self.spec(name).map_or_else(|_| self.type_name(), |spec| spec.element.to_string());
        Err(Error::invalid(name, "have type u8", got))
    }

    /// Length in bytes, of a tensor of bytes, or of a type that the operation has.
    pub fn len(&self) -> usize {
        let size = self.spec("").map_or(1, |spec| spec.element.size());
        self.shape.iter().product::<usize>() * size
    }
}

fn tensors(buffers: &Buffers) -> Result<Vec<Tensor>, Error> {
    // SAFETY: XLA's arrays are as long as it says.
    let (kinds, buffers) =
        unsafe { (list(buffers.kinds, buffers.size), list(buffers.buffers, buffers.size)) };
    let tensors = kinds.iter().zip(buffers).map(|(&kind, &buffer)| {
        if kind != abi::BUFFER {
            return Err(Error::invalid(
                "the custom call",
                "have tensors alone",
                format!("XLA's kind {kind}"),
            ));
        }
        // SAFETY: what is of this kind points to a buffer, whose axes are as many as its rank.
        let (buffer, dims) = unsafe { (&*buffer, list((*buffer).dims, (*buffer).rank)) };
        let mut tensor = Tensor { data: buffer.data, dtype: buffer.dtype, shape: Vec::new() };
        tensor.shape = tensor.with_components(dims.iter().map(|&axis| axis as usize));
        Ok(tensor)
    });
    tensors.collect()
}

/// # Safety
///
/// As [`slice::from_raw_parts`], but for an empty list that lies nowhere.
unsafe fn list<'a, T>(start: *const T, len: i64) -> &'a [T] {
    match usize::try_from(len) {
        // SAFETY: the caller's promise.
        Ok(len) if len > 0 => unsafe { slice::from_raw_parts(start, len) },
        _ => &[],
    }
}

/// # Safety
///
/// The bytes live for 'a.
unsafe fn text<'a>(span: &abi::ByteSpan) -> Option<&'a str> {
    // SAFETY: the caller's promise.
    std::str::from_utf8(unsafe { list(span.start, span.len as i64) }).ok()
}
