//! What instructions compute, by their names and types.

use std::cmp::Ordering::{Equal, Greater, Less};

use half::{bf16, f16};

use crate::module::{Compute, ComputeWithCarry, LANES, Lanes};

/// A type of PTX.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "they have the names that PTX gives them")]
pub enum Type {
    Pred,
    U8,
    S8,
    U16,
    S16,
    U32,
    S32,
    U64,
    S64,
    F16,
    Bf16,
    F32,
    F64,
}

impl Type {
    /// The type of this name; untyped bits are those of an unsigned number.
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "pred" => Self::Pred,
            "u8" | "b8" => Self::U8,
            "s8" => Self::S8,
            "u16" | "b16" => Self::U16,
            "s16" => Self::S16,
            "u32" | "b32" => Self::U32,
            "s32" => Self::S32,
            "u64" | "b64" => Self::U64,
            "s64" => Self::S64,
            "f16" => Self::F16,
            "bf16" => Self::Bf16,
            "f32" => Self::F32,
            "f64" => Self::F64,
            _ => return None,
        })
    }

    /// Bits of a number.
    pub fn bits(self) -> u32 {
        match self {
            Self::Pred => 1,
            Self::U8 | Self::S8 => 8,
            Self::U16 | Self::S16 | Self::F16 | Self::Bf16 => 16,
            Self::U32 | Self::S32 | Self::F32 => 32,
            Self::U64 | Self::S64 | Self::F64 => 64,
        }
    }

    /// Bytes of a number in memory.
    pub fn bytes(self) -> usize {
        self.bits().div_ceil(8) as usize
    }
}

/// A number as it lies in the low bits of a register.
trait Bits: Copy {
    fn of(bits: u64) -> Self;
    fn bits(self) -> u64;
}

macro_rules! integers_are_bits {
    ($($type:ty as $unsigned:ty),*) => {
        $(impl Bits for $type {
            fn of(bits: u64) -> Self {
                bits as Self
            }

            fn bits(self) -> u64 {
                u64::from(self as $unsigned)
            }
        })*
    };
}

integers_are_bits!(
    u8 as u8, i8 as u8, u16 as u16, i16 as u16, u32 as u32, i32 as u32, u64 as u64, i64 as u64
);

macro_rules! floats_are_bits {
    ($($type:ty as $unsigned:ty),*) => {
        $(impl Bits for $type {
            fn of(bits: u64) -> Self {
                Self::from_bits(bits as $unsigned)
            }

            fn bits(self) -> u64 {
                u64::from(self.to_bits())
            }
        })*
    };
}

floats_are_bits!(f16 as u16, bf16 as u16, f32 as u32, f64 as u64);

impl Bits for bool {
    fn of(bits: u64) -> Self {
        bits & 1 == 1
    }

    fn bits(self) -> u64 {
        u64::from(self)
    }
}

/// A [`Compute`] of what is written as a closure of up to four numbers of the types that it names.
macro_rules! compute {
    (|$($name:ident: $type:ty),*| $value:expr) => {{
        let function: Compute = |operands| {
            let mut values: Lanes = [0; LANES];
            for (lane, value) in values.iter_mut().enumerate() {
                let mut operands = operands.iter();
                $(let $name = <$type as Bits>::of(operands.next().map_or(0, |operand| operand[lane]));)*
                *value = Bits::bits($value);
            }
            values
        };
        Some(function)
    }};
}

/// The same of a closure whose numbers are all of one type.
macro_rules! compute_all {
    ($type:ty, (|$($name:ident),*| $value:expr)) => {
        compute!(|$($name: $type),*| $value)
    };
}

/// The same closure for each of several types, `T` in it; none where the type is no one of them.
macro_rules! for_types {
    ($of:expr, [$($name:ident $type:ty),*], $closure:tt) => {
        match $of {
            $(Type::$name => {
                #[allow(dead_code, reason = "not every closure names its type")]
                type T = $type;
                compute_all!($type, $closure)
            })*
            _ => None,
        }
    };
    ($of:expr, $types:tt, $($closure:tt)*) => {
        for_types!($of, $types, ($($closure)*))
    };
}

macro_rules! for_integers {
    ($of:expr, $($closure:tt)*) => {
        for_types!($of, [U16 u16, S16 i16, U32 u32, S32 i32, U64 u64, S64 i64], ($($closure)*))
    };
}

macro_rules! for_floats {
    ($of:expr, $($closure:tt)*) => {
        for_types!($of, [F32 f32, F64 f64], ($($closure)*))
    };
}

/// The function of an instruction that computes one number of others: its name, and what follows it.
pub fn function(name: &str, modifiers: &[&str], of: Type) -> Option<Compute> {
    let has = |modifier| modifiers.contains(&modifier);
    match name {
        "mov" | "cvta" => {
            for_types!(of, [Pred bool, U16 u16, U32 u32, S32 i32, U64 u64, S64 i64, F32 f32, F64 f64], |a| a)
        }
        "add" => for_integers!(of, |a, b| a.wrapping_add(b)).or(for_floats!(of, |a, b| a + b)),
        "sub" => for_integers!(of, |a, b| a.wrapping_sub(b)).or(for_floats!(of, |a, b| a - b)),
        "mul" if has("wide") => match of {
            Type::U16 => compute!(|a: u16, b: u16| u32::from(a) * u32::from(b)),
            Type::S16 => compute!(|a: i16, b: i16| i32::from(a) * i32::from(b)),
            Type::U32 => compute!(|a: u32, b: u32| u64::from(a) * u64::from(b)),
            Type::S32 => compute!(|a: i32, b: i32| i64::from(a) * i64::from(b)),
            _ => None,
        },
        "mul" if has("hi") => {
            for_integers!(of, |a, b| ((a as i128).wrapping_mul(b as i128) >> T::BITS) as T)
        }
        "mul" => for_integers!(of, |a, b| a.wrapping_mul(b)).or(for_floats!(of, |a, b| a * b)),
        "mad" if has("wide") => match of {
            Type::U16 => compute!(|a: u16, b: u16, c: u32| (u32::from(a) * u32::from(b)).wrapping_add(c)),
            Type::S16 => compute!(|a: i16, b: i16, c: i32| (i32::from(a) * i32::from(b)).wrapping_add(c)),
            Type::U32 => compute!(|a: u32, b: u32, c: u64| (u64::from(a) * u64::from(b)).wrapping_add(c)),
            Type::S32 => compute!(|a: i32, b: i32, c: i64| (i64::from(a) * i64::from(b)).wrapping_add(c)),
            _ => None,
        },
        "mad" if has("lo") => for_integers!(of, |a, b, c| a.wrapping_mul(b).wrapping_add(c)),
        "fma" => for_floats!(of, |a, b, c| a.mul_add(b, c)),
        // Division by zero gives a number that PTX leaves open.
        "div" => for_integers!(of, |a, b| if b == 0 { !0 } else { a.wrapping_div(b) })
            .or(for_floats!(of, |a, b| a / b)),
        "rem" => for_integers!(of, |a, b| if b == 0 { a } else { a.wrapping_rem(b) }),
        // What is not a number gives way, and -0 is less than +0.
        "min" => for_integers!(of, |a, b| a.min(b)).or(for_floats!(of, |a, b| {
            if b.is_nan() || a < b || a == b && a.is_sign_negative() { a } else { b }
        })),
        "max" => for_integers!(of, |a, b| a.max(b)).or(for_floats!(of, |a, b| {
            if b.is_nan() || a > b || a == b && a.is_sign_positive() { a } else { b }
        })),
        "abs" => {
            for_types!(of, [S16 i16, S32 i32, S64 i64], |a| a.wrapping_abs()).or(for_floats!(of, |a| a.abs()))
        }
        "neg" => {
            for_types!(of, [S16 i16, S32 i32, S64 i64], |a| a.wrapping_neg()).or(for_floats!(of, |a| -a))
        }
        "and" => for_types!(of, [Pred bool, U16 u16, U32 u32, U64 u64], |a, b| a & b),
        "or" => for_types!(of, [Pred bool, U16 u16, U32 u32, U64 u64], |a, b| a | b),
        "xor" => for_types!(of, [Pred bool, U16 u16, U32 u32, U64 u64], |a, b| a ^ b),
        "not" => for_types!(of, [Pred bool, U16 u16, U32 u32, U64 u64], |a| !a),
        // Shifts by more than there is leave nothing, or the sign.
        "shl" => match of {
            Type::U16 => compute!(|a: u16, by: u32| a.checked_shl(by).unwrap_or(0)),
            Type::U32 => compute!(|a: u32, by: u32| a.checked_shl(by).unwrap_or(0)),
            Type::U64 => compute!(|a: u64, by: u32| a.checked_shl(by).unwrap_or(0)),
            _ => None,
        },
        "shr" => match of {
            Type::U16 => compute!(|a: u16, by: u32| a.checked_shr(by).unwrap_or(0)),
            Type::S16 => compute!(|a: i16, by: u32| a >> by.min(15)),
            Type::U32 => compute!(|a: u32, by: u32| a.checked_shr(by).unwrap_or(0)),
            Type::S32 => compute!(|a: i32, by: u32| a >> by.min(31)),
            Type::U64 => compute!(|a: u64, by: u32| a.checked_shr(by).unwrap_or(0)),
            Type::S64 => compute!(|a: i64, by: u32| a >> by.min(63)),
            _ => None,
        },
        "shf" if has("l") && has("wrap") => {
            compute!(|low: u32, high: u32, by: u32| ((joined(low, high) << (by & 31)) >> 32) as u32)
        }
        "bfe" => match of {
            Type::U32 => compute!(|a: u32, at: u32, bits: u32| extracted(u64::from(a), at, bits) as u32),
            Type::U64 => compute!(|a: u64, at: u32, bits: u32| extracted(a, at, bits)),
            _ => None,
        },
        "bfi" => match of {
            Type::U32 => compute!(|a: u32, b: u32, at: u32, bits: u32| {
                inserted(u64::from(a), u64::from(b), at, bits) as u32
            }),
            Type::U64 => compute!(|a: u64, b: u64, at: u32, bits: u32| inserted(a, b, at, bits)),
            _ => None,
        },
        "clz" => for_types!(of, [U32 u32, U64 u64], |a| a.leading_zeros()),
        "selp" => match of.bits() {
            16 => compute!(|a: u16, b: u16, is: bool| if is { a } else { b }),
            32 => compute!(|a: u32, b: u32, is: bool| if is { a } else { b }),
            64 => compute!(|a: u64, b: u64, is: bool| if is { a } else { b }),
            _ => None,
        },
        "ex2" if of == Type::F32 && has("ftz") => compute!(|a: f32| flushed(flushed(a).exp2())),
        "ex2" if of == Type::F32 => compute!(|a: f32| a.exp2()),
        "rcp" if has("approx") => match of {
            Type::F32 => compute!(|a: f32| flushed(1.0 / flushed(a))),
            // As much as this one gives: the upper half, and 20 digits of it.
            Type::F64 => compute!(|a: f64| f64::from_bits((1.0 / a).to_bits() & !0 << 32)),
            _ => None,
        },
        "rcp" => for_floats!(of, |a| 1.0 / a),
        _ => None,
    }
}

fn joined(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

/// So many low bits.
pub fn low(bits: u32) -> u64 {
    if bits >= 64 { !0 } else { (1u64 << bits) - 1 }
}

/// The bits of `a` from a place on; of both numbers the low 8 bits count.
fn extracted(a: u64, at: u32, bits: u32) -> u64 {
    a.checked_shr(at & 0xff).unwrap_or(0) & low(bits & 0xff)
}

/// `b` with the low bits of `a` put at a place; of both numbers the low 8 bits count.
fn inserted(a: u64, b: u64, at: u32, bits: u32) -> u64 {
    let (at, bits) = (at & 0xff, bits & 0xff);
    let mask = low(bits).checked_shl(at).unwrap_or(0);
    b & !mask | a.checked_shl(at).unwrap_or(0) & mask
}

/// .ftz: what is too small for a normal number is zero.
fn flushed(value: f32) -> f32 {
    if value.is_subnormal() { 0f32.copysign(value) } else { value }
}

/// The function of a comparison. Those that end with u are true where one side is not a number.
pub fn comparison(name: &str, of: Type) -> Option<Compute> {
    macro_rules! ordered {
        ($order:pat) => {
            for_floats!(of, |a, b| matches!(a.partial_cmp(&b), $order))
        };
    }
    match of {
        Type::F32 | Type::F64 => match name {
            "eq" => ordered!(Some(Equal)),
            "ne" => ordered!(Some(Less | Greater)),
            "lt" => ordered!(Some(Less)),
            "le" => ordered!(Some(Less | Equal)),
            "gt" => ordered!(Some(Greater)),
            "ge" => ordered!(Some(Greater | Equal)),
            "equ" => ordered!(Some(Equal) | None),
            "neu" => ordered!(Some(Less | Greater) | None),
            "ltu" => ordered!(Some(Less) | None),
            "leu" => ordered!(Some(Less | Equal) | None),
            "gtu" => ordered!(Some(Greater) | None),
            "geu" => ordered!(Some(Greater | Equal) | None),
            "num" => for_floats!(of, |a, b| a.partial_cmp(&b).is_some()),
            "nan" => for_floats!(of, |a, b| a.partial_cmp(&b).is_none()),
            _ => None,
        },
        _ => match name {
            "eq" => for_integers!(of, |a, b| a == b),
            "ne" => for_integers!(of, |a, b| a != b),
            "lt" | "lo" => for_integers!(of, |a, b| a < b),
            "le" | "ls" => for_integers!(of, |a, b| a <= b),
            "gt" | "hi" => for_integers!(of, |a, b| a > b),
            "ge" | "hs" => for_integers!(of, |a, b| a >= b),
            _ => None,
        },
    }
}

/// The function of a conversion. What is signed fills the register up with its sign. From a float to an integer it saturates.
pub fn conversion(modifiers: &[&str], to: Type, from: Type) -> Option<Compute> {
    let has = |modifier| modifiers.contains(&modifier);
    macro_rules! from_integer {
        ($from:ty) => {
            match to {
                Type::U8 => compute!(|a: $from| a as u8),
                Type::S8 => compute!(|a: $from| i64::from(a as i8)),
                Type::U16 => compute!(|a: $from| a as u16),
                Type::S16 => compute!(|a: $from| i64::from(a as i16)),
                Type::U32 => compute!(|a: $from| a as u32),
                Type::S32 => compute!(|a: $from| i64::from(a as i32)),
                Type::U64 => compute!(|a: $from| a as u64),
                Type::S64 => compute!(|a: $from| a as i64),
                Type::F32 if has("rn") => compute!(|a: $from| a as f32),
                Type::F64 if has("rn") => compute!(|a: $from| a as f64),
                _ => None,
            }
        };
    }
    // What is not a number is 0 where both have 32 bits or less, else the number of which only the highest bit is set.
    macro_rules! to_integer {
        ($from:ty, |$a:ident| $rounded:expr) => {
            match to {
                Type::U32 if size_of::<$from>() == 4 => compute!(|$a: $from| ($rounded) as u32),
                Type::S32 if size_of::<$from>() == 4 => compute!(|$a: $from| i64::from(($rounded) as i32)),
                Type::U32 => compute!(|$a: $from| if $a.is_nan() { 1 << 31 } else { ($rounded) as u32 }),
                Type::S32 => {
                    compute!(|$a: $from| i64::from(if $a.is_nan() { i32::MIN } else { ($rounded) as i32 }))
                }
                Type::U64 => compute!(|$a: $from| if $a.is_nan() { 1 << 63 } else { ($rounded) as u64 }),
                Type::S64 => compute!(|$a: $from| if $a.is_nan() { i64::MIN } else { ($rounded) as i64 }),
                Type::F32 if size_of::<$from>() == 4 => compute!(|$a: $from| ($rounded) as f32),
                Type::F64 if size_of::<$from>() == 8 => compute!(|$a: $from| ($rounded) as f64),
                _ => None,
            }
        };
    }
    macro_rules! rounded {
        ($from:ty) => {
            if has("rni") {
                to_integer!($from, |a| a.round_ties_even())
            } else if has("rmi") {
                to_integer!($from, |a| a.floor())
            } else if has("rpi") {
                to_integer!($from, |a| a.ceil())
            } else if has("rzi") {
                to_integer!($from, |a| a.trunc())
            } else {
                None
            }
        };
    }
    match (from, to) {
        (Type::F16, Type::F32) => compute!(|a: f16| a.to_f32()),
        (Type::Bf16, Type::F32) => compute!(|a: bf16| a.to_f32()),
        (Type::F32, Type::F16) if has("rn") => compute!(|a: f32| f16::from_f32(a)),
        (Type::F32, Type::Bf16) if has("rn") => compute!(|a: f32| bf16::from_f32(a)),
        (Type::F32, Type::F64) => compute!(|a: f32| f64::from(a)),
        (Type::F64, Type::F32) if has("rn") => compute!(|a: f64| a as f32),
        (Type::U8, _) => from_integer!(u8),
        (Type::S8, _) => from_integer!(i8),
        (Type::U16, _) => from_integer!(u16),
        (Type::S16, _) => from_integer!(i16),
        (Type::U32, _) => from_integer!(u32),
        (Type::S32, _) => from_integer!(i32),
        (Type::U64, _) => from_integer!(u64),
        (Type::S64, _) => from_integer!(i64),
        (Type::F32, _) => rounded!(f32),
        (Type::F64, _) => rounded!(f64),
        _ => None,
    }
}

/// The function of an instruction that adds, subtracts or multiplies with a carry: add.cc, addc, madc.hi and the like.
pub fn function_with_carry(name: &str, modifiers: &[&str], of: Type) -> Option<ComputeWithCarry> {
    let has = |modifier| modifiers.contains(&modifier);
    // PTX has these for 64 bits too, and products of signed numbers; our kernels do not.
    if of != Type::U32 {
        return None;
    }
    macro_rules! with_carry {
        (|$a:ident, $b:ident, $c:ident, $carry:ident| $sum:expr) => {{
            let function: ComputeWithCarry = |[a, b, c, _], carry| {
                let ($a, $b, $c, $carry) =
                    (a & 0xffff_ffff, b & 0xffff_ffff, c & 0xffff_ffff, u64::from(carry));
                let sum: u64 = $sum;
                (sum & 0xffff_ffff, sum >> 32 != 0)
            };
            Some(function)
        }};
    }
    match name {
        "add" => with_carry!(|a, b, _c, _carry| a + b),
        "addc" => with_carry!(|a, b, _c, carry| a + b + carry),
        "sub" => with_carry!(|a, b, _c, _carry| a.wrapping_sub(b)),
        "subc" => with_carry!(|a, b, _c, carry| a.wrapping_sub(b).wrapping_sub(carry)),
        "mad" if has("lo") => with_carry!(|a, b, c, _carry| ((a * b) & 0xffff_ffff) + c),
        "madc" if has("lo") => with_carry!(|a, b, c, carry| ((a * b) & 0xffff_ffff) + c + carry),
        "mad" if has("hi") => with_carry!(|a, b, c, _carry| ((a * b) >> 32) + c),
        "madc" if has("hi") => with_carry!(|a, b, c, carry| ((a * b) >> 32) + c + carry),
        _ => None,
    }
}

/// What makes a register of a number in memory: signs go all the way up.
pub fn extension(of: Type) -> Compute {
    let signed = match of {
        Type::S8 => compute!(|a: i8| i64::from(a)),
        Type::S16 => compute!(|a: i16| i64::from(a)),
        Type::S32 => compute!(|a: i32| i64::from(a)),
        _ => None,
    };
    signed.unwrap_or(|[values, ..]| *values)
}
