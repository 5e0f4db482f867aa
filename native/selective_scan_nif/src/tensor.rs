//! `ExPhil.Native.Tensor` as a borrowed view, of memory of the BEAM or of a device.

use std::ptr::null;

use rustler::sys::enif_get_tuple;
use rustler::types::tuple::get_tuple;
use rustler::{Atom, Binary, Env, Term, TermType};
use selective_scan::cuda::CUdeviceptr;
use selective_scan::{ElementType, Error, Spec};

rustler::atoms! { bf, data, f, s, shape, r#type = "type", u }

/// Axes of a shape that is read at all.
const MOST_AXES: usize = 32;

/// Where the numbers of a tensor are.
pub trait Data<'a>: Sized {
    /// What the field must be, in words.
    const EXPECTED: &'static str;

    /// Reads the field.
    fn decode(term: Term<'a>) -> Option<Self>;
}

/// In a binary of the BEAM.
impl<'a> Data<'a> for &'a [u8] {
    const EXPECTED: &'static str = "have data that is a binary";

    fn decode(term: Term<'a>) -> Option<Self> {
        Binary::from_term(term).ok().map(|binary| binary.as_slice())
    }
}

/// In a device's memory, at an address that another library gave out.
impl Data<'_> for CUdeviceptr {
    const EXPECTED: &'static str = "have data that is an address";

    fn decode(term: Term<'_>) -> Option<Self> {
        term.decode().ok()
    }
}

/// A tensor that stays where it is.
pub struct Tensor<D> {
    element: ElementType,
    shape: Vec<usize>,
    /// Not yet compared with type and shape: backends do.
    pub data: D,
}

impl<'a, D: Data<'a>> Tensor<D> {
    /// Reads the struct. Nothing about it is trusted: its fields may have been forged.
    pub fn decode(name: &'static str, term: Term<'a>) -> Result<Self, Error> {
        let env = term.get_env();
        let field = |key: Atom, expected: &str| {
            let value = term.map_get(key.to_term(env));
            value.map_err(|_| Error::invalid(name, expected, shown(term)))
        };
        let kind = field(r#type(), "be a tensor with a type")?;
        let axes = field(shape(), "be a tensor with a shape")?;
        let numbers = field(data(), "be a tensor with data")?;
        Ok(Self {
            element: element(name, kind)?,
            shape: decode_shape(axes).ok_or_else(|| {
                let expected = "have a shape that is a tuple of positive integers";
                Error::invalid(name, expected, shown(axes))
            })?,
            data: D::decode(numbers).ok_or_else(|| Error::invalid(name, D::EXPECTED, shown(numbers)))?,
        })
    }

    /// What `Problem` wants to know of it.
    pub fn spec(&self) -> Spec<'_> {
        Spec { element: self.element, shape: &self.shape }
    }
}

/// A term as Elixir shows it, if it is of few numbers, atoms and characters; of others, which may be of any size, the kind.
pub fn shown(term: Term) -> String {
    if is_small(term, &mut 32) {
        format!("{term:?}")
    } else {
        format!("a term of type {:?}", term.get_type())
    }
}

fn is_small(term: Term, left: &mut usize) -> bool {
    let Some(rest) = left.checked_sub(1) else { return false };
    *left = rest;
    match term.get_type() {
        TermType::Atom | TermType::Float => true,
        TermType::Integer => term.decode::<i64>().is_ok() || term.decode::<u64>().is_ok(),
        TermType::Binary => Binary::from_term(term).is_ok_and(|binary| binary.len() <= 64),
        TermType::Tuple => {
            tuple_of(term, *left).is_some_and(|terms| terms.into_iter().all(|term| is_small(term, left)))
        }
        TermType::List => {
            let mut rest = term;
            while let Ok((first, others)) = rest.list_get_cell() {
                if !is_small(first, left) {
                    return false;
                }
                rest = others;
            }
            rest.is_empty_list()
        }
        _ => false,
    }
}

/// The terms of a tuple of so many at most: it may have been forged, and millions take their time to be copied.
fn tuple_of(term: Term<'_>, most: usize) -> Option<Vec<Term<'_>>> {
    let (mut arity, mut terms) = (0, null());
    // SAFETY: the environment is the term's own. The BEAM writes to both variables, or refuses what is no tuple.
    let is_tuple = unsafe {
        enif_get_tuple(term.get_env().as_c_arg(), term.as_c_arg(), &raw mut arity, &raw mut terms) == 1
    };
    if is_tuple && arity as usize <= most { get_tuple(term).ok() } else { None }
}

fn decode_shape(axes: Term) -> Option<Vec<usize>> {
    tuple_of(axes, MOST_AXES)?.into_iter().map(|axis| axis.decode().ok()).collect()
}

fn element(name: &'static str, kind: Term) -> Result<ElementType, Error> {
    let (class, bits): (Atom, u32) =
        kind.decode().map_err(|_| Error::invalid(name, "have a type such as {:f, 32}", shown(kind)))?;
    match bits {
        32 if class == f() => Ok(ElementType::F32),
        64 if class == f() => Ok(ElementType::F64),
        16 if class == f() => Ok(ElementType::F16),
        16 if class == bf() => Ok(ElementType::Bf16),
        32 if class == s() => Ok(ElementType::S32),
        _ => {
            let class = class.to_term(kind.get_env());
            Err(Error::wrong_type(name, format!("{class:?}{bits}")))
        }
    }
}

/// The name that Elixir has for an element type of a file, if it has one.
pub fn file_type(env: Env<'_>, dtype: ::safetensors::Dtype) -> Option<(Term<'_>, u32)> {
    use ::safetensors::Dtype;
    let (class, bits) = match dtype {
        Dtype::F64 => (f(), 64),
        Dtype::F32 => (f(), 32),
        Dtype::F16 => (f(), 16),
        Dtype::BF16 => (bf(), 16),
        Dtype::I64 => (s(), 64),
        Dtype::I32 => (s(), 32),
        Dtype::I16 => (s(), 16),
        Dtype::I8 => (s(), 8),
        Dtype::U64 => (u(), 64),
        Dtype::U32 => (u(), 32),
        Dtype::U16 => (u(), 16),
        Dtype::U8 | Dtype::BOOL => (u(), 8),
        _ => return None,
    };
    Some((class.to_term(env), bits))
}
